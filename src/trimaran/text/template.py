"""Chat templates, rendered to token ids so that only the template can write control tokens.

Control tokens are found in the rendered text, but not in what a user wrote: before rendering, every control token in a
message, tool or argument is broken up with a character that occurs nowhere else; afterwards the character is taken out
of the text between the control tokens. A user who types ``<|im_end|>`` gets the text "<|im_end|>".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes

from trimaran.base.errors import CheckpointError, RequestError
from trimaran.checkpoint.checkpoint import Checkpoint
from trimaran.text.chat_messages import check_messages
from trimaran.text.sandbox import ChatEnvironment, TemplateRefusedError, run_template
from trimaran.text.template_source import find_sources
from trimaran.text.tokenizer import Tokenizer

LAST_MARK = 0x10FFFD  # marks are taken from here downwards: private use, no letter, not white space


class ChatTemplate:
    """A model's chat template. Safe to use from several threads."""

    def __init__(self, sources: Mapping[str, str], tokenizer: Tokenizer) -> None:
        """``sources``: Jinja by name, ``default`` and perhaps ``tool_use``. Raises ``CheckpointError`` on bad Jinja."""
        self._tokenizer = tokenizer
        self._templates = {name: _Compiled.of(source) for name, source in sources.items()}

    def render(
        self, messages: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool = True, **kwargs: Any
    ) -> list[int]:
        """Token ids of a conversation; ``kwargs`` (``tools``, ``enable_thinking``, …) go to the template.

        Raises ``RequestError`` when a message is malformed, the template refuses the conversation (with the template's
        own words), or does not read one of ``kwargs``, which would be dropped in silence.
        """
        compiled = self._choose(kwargs)
        checked = check_messages(messages, developer=compiled.knows_developers)
        written: Any = {"tools": None, "documents": None, **kwargs, "messages": checked}
        mark = ""
        try:
            mark = _unused_character(written)
            written = _map_strings(written, lambda text: self._tokenizer.control.broken_up(text, mark))
            variables = {**self._tokenizer.named, **written, "add_generation_prompt": add_generation_prompt}
            text = run_template(compiled.template, variables)
        except Exception as error:  # the template is somebody's code and may raise anything
            own_words = isinstance(error, TemplateRefusedError)
            message = str(error) if own_words else f"the model's chat template failed: {error}"
            raise RequestError(message.replace(mark, ""), param="messages") from error
        ids: list[int] = []
        for piece in self._tokenizer.control.split(text):
            ids += [piece] if isinstance(piece, int) else self._tokenizer.encode(piece.replace(mark, ""))
        return ids

    def _choose(self, arguments: Mapping[str, Any]) -> "_Compiled":
        """The template for these arguments; an argument that it would drop is an error."""
        if "default" not in self._templates:
            raise RequestError(
                "the model has no chat template; send a prompt to /v1/completions (LLM.generate) instead",
                param="messages",
                code="no_chat_template",
            )
        name = "tool_use" if arguments.get("tools") and "tool_use" in self._templates else "default"
        compiled = self._templates[name]
        for key, value in arguments.items():
            if key in _RESERVED or key in self._tokenizer.named:
                raise RequestError(f"the template argument {key!r} cannot be set", param=key)
            if value is not None and key not in compiled.reads:
                raise RequestError(f"the model's chat template does not use {key!r}", param=key)
        return compiled


def open_template(checkpoint: Checkpoint, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template that belongs to a model; one without is an error only when it is used."""
    return ChatTemplate(find_sources(checkpoint), tokenizer)


_RESERVED = frozenset({"messages", "add_generation_prompt", "raise_exception", "strftime_now"})


@dataclass(frozen=True)
class _Compiled:
    template: Template
    reads: frozenset[str]  # names of variables
    knows_developers: bool

    @classmethod
    def of(cls, source: str) -> "_Compiled":
        environment = ChatEnvironment()
        try:
            names = environment.parse(source).find_all(nodes.Name)
            reads = frozenset(name.name for name in names if name.ctx == "load")
            return cls(environment.from_string(source), reads, "developer" in source)
        except TemplateSyntaxError as error:
            where = f"line {error.lineno}: {error}"
            raise CheckpointError(f"the model's chat template is not valid Jinja, {where}") from error


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value


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


def _unused_character(value: Any) -> str:
    mark = chr(LAST_MARK)
    strings = list(_strings(value))
    if any(mark in text for text in strings):
        used = set().union(*strings)
        mark = next(char for code in range(LAST_MARK, 0, -1) if (char := chr(code)) not in used)
    return mark
