"""How a model family writes thoughts and tool calls: the one description that parsers and grammars are made from.

Texts in a description are what the family's own template writes. Line breaks in them are layout: a grammar writes them
as they stand, a parser takes any white space in their place. All else counts, and what a vocabulary holds as a control
token counts as that token only (``markup.py``).
"""

from dataclasses import dataclass
from typing import Literal

IdForm = Literal["call", "short", "counted"]


@dataclass(frozen=True)
class ReasoningFormat:
    """A thought stands between ``begin`` and ``end``, before the answer."""

    begin: str
    end: str


@dataclass(frozen=True)
class ObjectCall:
    """A call is a JSON object: ``{"name": "f", "arguments": {…}}``. Keys that are ``also`` allowed mean nothing."""

    arguments: str = "arguments"
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class NamedCall:
    """The name, then its arguments as a JSON object. ``name`` says how the name is written: ``{f}`` is its place, and
    ``{n}`` that of a number. ``id_mark`` may follow it, and the call's id after that.
    """

    before: str
    between: str
    after: str = ""
    name: str = "{f}"
    id_mark: str = ""


@dataclass(frozen=True)
class TaggedCall:
    """The name, then every argument between marks of its own. A string is written as it is, all else as JSON.

    ``keys`` are the alternatives for what stands between an argument's name and its value, each with what it says of
    the value: a string, JSON, or ``None`` for what the function's schema says. ``padding`` is written around values.
    """

    before: str
    between: str
    argument: str
    keys: tuple[tuple[str, Literal["string", "json"] | None], ...]
    value_end: str
    after: str = ""
    padding: str = ""


@dataclass(frozen=True)
class ToolFormat:
    """Calls come in blocks from ``begin`` to ``end``: one in each, or ``several`` with ``separator`` between them,
    and ``opening`` before the first.

    A ``bare`` format has calls without any marks: an answer that begins like one may be one, and ``begin`` may stand
    before it. ``most`` is how many calls an answer can make. ``ids``: what the family's template expects as ids of
    calls: anything, nine letters and digits, or the name as ``call.name`` writes it, counted through the conversation.
    """

    begin: str
    end: str
    call: ObjectCall | NamedCall | TaggedCall
    opening: str = ""
    several: bool = False
    separator: str = ""
    bare: bool = False
    most: int | None = None
    ids: IdForm = "call"

    def literals(self) -> list[str]:
        """All texts of the format in which a vocabulary's control tokens may stand."""
        call = self.call
        texts = [self.begin, self.opening, self.end, self.separator]
        if isinstance(call, NamedCall):
            texts += [call.before, call.id_mark, call.between, call.after]
        elif isinstance(call, TaggedCall):
            texts += [call.before, call.between, call.argument, *(key for key, _ in call.keys), call.value_end]
            texts.append(call.after)
        return texts
