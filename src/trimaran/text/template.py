"""Chat templates, rendered to token ids so that only the template can write control tokens.

Control tokens are found in the rendered text where the template wrote them itself (``written.py``). A user who types
``<|im_end|>`` gets the text "<|im_end|>", and the template's own logic sees what was typed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trimaran.base.errors import RequestError
from trimaran.checkpoint.checkpoint import Checkpoint
from trimaran.text.budget import TemplateRefusedError
from trimaran.text.chat_messages import check_messages
from trimaran.text.control import ControlToken, ControlTokens
from trimaran.text.effort import effort_arguments
from trimaran.text.kimi_tools import typescript
from trimaran.text.renderer import Renderer
from trimaran.text.template_code import TemplateCode
from trimaran.text.template_source import find_renderers, read_template
from trimaran.text.tokenizer import Tokenizer
from trimaran.text.written import Written, literal, written_by_template


class ChatTemplate:
    """A model's chat template. Safe to use from several threads."""

    def __init__(self, templates: Mapping[str, str | Renderer], tokenizer: Tokenizer) -> None:
        """``templates``: Jinja or code by name, ``default`` and perhaps ``tool_use``.

        Raises ``CheckpointError`` on bad Jinja.
        """
        self._tokenizer = tokenizer
        self._templates: dict[str, Renderer] = {
            name: TemplateCode.of(given) if isinstance(given, str) else given for name, given in templates.items()
        }
        structural = _structural("".join(renderer.source for renderer in self._templates.values()), tokenizer)
        self._added = ControlTokens(structural)
        self._markup = ControlTokens([*tokenizer.control, *structural])
        self._named = {name: literal(text) for name, text in tokenizer.named.items()}

    @property
    def source(self) -> str:
        """The text of all its templates."""
        return "\n".join(renderer.source for renderer in self._templates.values())

    def render(
        self, messages: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool = True, **kwargs: Any
    ) -> list[int]:
        """Token ids of a conversation; ``kwargs`` (``tools``, ``enable_thinking``, …) go to the template.

        Raises ``RequestError`` when a message is malformed, the template refuses the conversation (with the template's
        own words), or does not read one of ``kwargs``, which would be dropped in silence.
        """
        renderer = self._choose(kwargs)
        checked = check_messages(messages, renderer.wants)
        given = {"tools": None, "documents": None, **kwargs, "messages": checked}
        try:
            typed = any(map(self._markup.may_begin_in, _strings(given)))
            roles = [{**message, "role": literal(message["role"])} for message in checked]
            variables = {**self._named, **given, "messages": roles, "add_generation_prompt": add_generation_prompt}
            if "tools_ts_str" in renderer.reads and given["tools"]:
                variables["tools_ts_str"] = typescript(given["tools"])
            text = renderer.run(variables)
        except Exception as error:  # the template is somebody's code and may raise anything
            own_words = isinstance(error, TemplateRefusedError)
            message = str(error) if own_words else f"the model's chat template failed: {error}"
            raise RequestError(message, param="messages") from error
        typed = typed or self._markup.made_of(text, written_by_template(text), _strings(given))
        return self._tokenizer.encode_segments(self._segments(text) if typed else self._markup.split(text))

    def effort(self, effort: str) -> dict[str, Any]:
        """Arguments of ``render`` for the API's ``reasoning_effort``; raises ``RequestError`` where it is not known."""
        return effort_arguments(effort, self._renderer())

    def _segments(self, text: Written) -> Iterator[str | int]:
        """Ids of the control tokens that the template wrote, and the text between them with all others cut."""
        for piece in self._markup.split(text, written_by_template(text)):
            if isinstance(piece, int):
                yield piece
                continue
            at = 0  # the tokenizer knows added tokens, but not one that is cut
            for start in self._added.starts_in(piece):
                yield piece[at : start + 1]
                at = start + 1
            yield piece[at:]

    def _choose(self, arguments: Mapping[str, Any]) -> Renderer:
        """The template for these arguments; an argument that it would drop is an error."""
        renderer = self._renderer(with_tools=bool(arguments.get("tools")))
        for key, value in arguments.items():
            if key in _RESERVED or key in self._named:
                raise RequestError(f"the template argument {key!r} cannot be set", param=key)
            if value is not None and key not in renderer.reads:
                raise RequestError(f"the model's chat template does not use {key!r}", param=key)
        return renderer

    def _renderer(self, *, with_tools: bool = False) -> Renderer:
        if "default" not in self._templates:
            raise RequestError(
                "the model has no chat template: send a prompt to /v1/completions (LLM.generate), or give one with"
                " --chat-template (LLM's chat_template)",
                param="messages",
                code="no_chat_template",
            )
        return self._templates["tool_use" if with_tools and "tool_use" in self._templates else "default"]


def open_template(checkpoint: Checkpoint, tokenizer: Tokenizer, file: Path | None = None) -> ChatTemplate:
    """The chat template that belongs to a model, or the Jinja in ``file``; without any, only rendering is an error.

    Raises ``CheckpointError`` when a template is not valid Jinja or ``file`` cannot be read.
    """
    if file is not None:
        return ChatTemplate({"default": read_template(file)}, tokenizer)
    return ChatTemplate(find_renderers(checkpoint), tokenizer)


_RESERVED = frozenset({"messages", "add_generation_prompt", "raise_exception", "strftime_now", "tools_ts_str"})
_BRACKETED = re.compile(r"<.*>|\[.*\]", re.DOTALL)


def _structural(source: str, tokenizer: Tokenizer) -> list[ControlToken]:
    """Added tokens that a prompt's structure is made of, though their vocabulary does not call them control tokens.

    Qwen's ``<tool_response>`` is one, GLM's ``<think>``: those in brackets that the template writes or looks for.
    Others are text to everybody: Gemma's runs of spaces, GLM's ``/nothink``, which is meant to be typed.
    """
    return [token for token in tokenizer.added if _BRACKETED.fullmatch(token.text) and token.text in source]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
