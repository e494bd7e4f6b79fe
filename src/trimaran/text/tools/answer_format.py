"""A family's formats in one model's vocabulary."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from trimaran.base.grammar import Grammar
from trimaran.text.tokenizer import Tokenizer
from trimaran.text.tools.answer_grammar import AnswerGrammar, Wanted
from trimaran.text.tools.calls import Parameters
from trimaran.text.tools.families import REASONING_FORMATS, TOOL_FORMATS, reasoning_format_of, tool_format_of
from trimaran.text.tools.formats import NamedCall, ObjectCall, ReasoningFormat, TaggedCall, ToolFormat
from trimaran.text.tools.markup import Markup
from trimaran.text.tools.parser import AnswerForm, Thinking

TAIL = 32  # tokens at a prompt's end among which it may begin a thought

_Part = TypeVar("_Part", ToolFormat, ReasoningFormat, ObjectCall | NamedCall | TaggedCall)


class AnswerFormat:
    """What a model writes thoughts and calls in; None for what it does not, or what is not to be looked for."""

    def __init__(self, tokenizer: Tokenizer, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> None:
        self.tools = tools
        self.reasoning = reasoning
        literals = [*(tools.literals() if tools else ()), *((reasoning.begin, reasoning.end) if reasoning else ())]
        self.markup = Markup(tokenizer, literals)
        self._tokenizer = tokenizer
        encode = self.markup.encode
        self._reasoning = None if reasoning is None else _encoded(reasoning, encode)
        self._grammar = AnswerGrammar(tokenizer.control, tools, reasoning)
        self._tools = None if tools is None else replace(_encoded(tools, encode), call=_encoded(tools.call, encode))

    def thinking(self, prompt: Sequence[int]) -> Thinking:
        """Whether an answer to ``prompt`` begins in a thought: a template begins one, ends one, or leaves it open."""
        if self.reasoning is None:
            return "no"
        tail = self._tokenizer.decode(prompt[-TAIL:], skip_special=False).rstrip()
        if tail.endswith(self.reasoning.begin):
            return "begun"
        return "no" if tail.endswith(self.reasoning.end) else "maybe"

    def grammar(self, wanted: Wanted, thinking: Thinking) -> Grammar | None:
        """The grammar of such an answer; None for one that may be anything. Raises ``RequestError``."""
        return self._grammar.of(wanted, thinking)

    def form(self, thinking: Thinking, offered: Parameters | None = None) -> AnswerForm:
        """What to look for in an answer: calls if functions are ``offered``."""
        return AnswerForm(self.markup, self._reasoning, thinking, self._tools if offered else None, offered or {})


def find_format(tokenizer: Tokenizer, template: str, tools: str, reasoning: str) -> AnswerFormat:
    """The formats of these names; ``auto`` is what the chat template's source shows, ``none`` is none."""
    if tools == "auto":
        tools = tool_format_of(template) or "none"
    if reasoning == "auto":
        reasoning = reasoning_format_of(template) or "none"
    return AnswerFormat(tokenizer, TOOL_FORMATS.get(tools), REASONING_FORMATS.get(reasoning))


def _encoded(part: _Part, encode: Callable[[str], str]) -> _Part:
    """A description with its texts in the vocabulary."""
    changes: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name == "keys":
            changes[field.name] = tuple((encode(text), kind) for text, kind in value)
        elif isinstance(value, str) and field.name != "ids":
            changes[field.name] = encode(value)
    return replace(part, **changes)
