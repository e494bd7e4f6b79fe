"""One grammar for a whole answer: the thought, the calls of tools, and what it must look like otherwise.

It is made from the descriptions that the parser reads by, so that what it lets through is what the parser takes.
Source of the dialect: https://github.com/guidance-ai/llguidance, docs/syntax.md.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trimaran.base.errors import RequestError
from trimaran.base.grammar import MAX_GRAMMAR_LENGTH, Grammar
from trimaran.text.control import ControlTokens
from trimaran.text.json_schema import passed_over
from trimaran.text.tools.argument_grammar import ArgumentGrammar, UnenforcedError
from trimaran.text.tools.formats import NamedCall, ObjectCall, ReasoningFormat, TaggedCall, ToolFormat
from trimaran.text.tools.lark import ANY, Lark, either, escaped_slashes
from trimaran.text.tools.parser import Thinking
from trimaran.text.tools.reader import parts_of

GAP = r"\n{1,2}"  # what may stand before a call and after a thought
CALL_ID = "[a-zA-Z0-9]{9}"
COUNT = "(0|[1-9][0-9]{0,5})"


@dataclass(frozen=True)
class Offered:
    """A function that may be called; ``strict``: a feature of its schema that cannot be enforced is an error."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool
    field: str  # where the client wrote the schema


@dataclass(frozen=True)
class Wanted:
    """What an answer may be. ``shown``: the model sees tools, though it may call only those ``offered``."""

    offered: tuple[Offered, ...] = ()
    shown: bool = False
    must: bool = False
    several: bool = True
    answer: Grammar | None = None  # of what it says where it does not call


class AnswerGrammar:
    """Writes grammars for one model's formats; the texts in them are as the vendor writes them."""

    def __init__(self, control: ControlTokens, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> None:
        self._control, self._tools, self._reasoning = control, tools, reasoning

    def of(self, wanted: Wanted, thinking: Thinking) -> Grammar | None:
        """The grammar of an answer, None for one that may be anything; raises ``RequestError``.

        Tools of which none is strict, and which need not be called, go without one that would be too long.
        """
        shown = wanted.shown and self._tools is not None
        if not shown and (wanted.answer is None or thinking == "no"):
            return wanted.answer
        text = _Writer(self._control, self._tools, self._reasoning, wanted, thinking).text()
        field = "tools" if wanted.answer is None or wanted.offered else wanted.answer.field
        if len(text) > MAX_GRAMMAR_LENGTH:
            if wanted.answer is None and not any(offered.strict for offered in wanted.offered):
                return None
            why = f"{field} make a grammar of {len(text):,} characters, the limit is {MAX_GRAMMAR_LENGTH:,}"
            raise RequestError(why, param=field, code="unsupported_grammar")
        return Grammar("lark", text, field)


class _Writer:
    def __init__(
        self,
        control: ControlTokens,
        tools: ToolFormat | None,
        reasoning: ReasoningFormat | None,
        wanted: Wanted,
        thinking: Thinking,
    ) -> None:
        self._lark = Lark(control)
        self._tools, self._reasoning = tools, reasoning
        self._wanted, self._thinking = wanted, thinking
        self._gap = self._lark.terminal(GAP) + "?"

    def text(self) -> str:
        ways = [f"{thought} {rest}" for thought in self._thoughts() for rest in self._after(thought)]
        if self._thinking == "begun" and self._wanted.offered:  # a call may end the thought
            ways += [f"{begin} {rest}" for begin, rest in self._calls_after_text()]
        return self._lark.text(either(dict.fromkeys(ways)))

    def _thoughts(self) -> Iterator[str]:
        """What may stand before the answer, nothing included."""
        if self._reasoning is None or self._thinking == "no":
            yield ""
            return
        lark, marks = self._lark, self._reasoning
        end = lark.up_to(marks.end)
        if self._thinking == "begun":
            yield end
            return
        yield ""
        if not self._free or not lark.is_text(marks.begin):  # in free text a thought is text, too
            yield f"{self._gap} {lark.literal(marks.begin)} {end}"

    @property
    def _free(self) -> bool:
        """Whether an answer that calls nothing may be any text."""
        return self._wanted.answer is None and not (self._wanted.must and self._wanted.offered)

    def _after(self, thought: str) -> Iterator[str]:
        """What may follow a thought, or stand where there is none."""
        wanted, lark = self._wanted, self._lark
        if wanted.answer is not None and not wanted.must:
            yield f"{self._gap if thought else ''} {self._answer(wanted.answer)}"
        if self._free:
            yield from self._free_text()
        if not wanted.offered:
            return
        if self._free:
            yield from (f"{begin} {rest}" for begin, rest in self._calls_after_text())
        else:
            assert self._tools is not None
            begin = lark.literal(self._tools.begin)
            yield f"{self._gap} {begin}{'?' if self._tools.bare else ''} {self._calls()}"

    def _free_text(self) -> Iterator[str]:
        """An answer without calls."""
        lark, tools = self._lark, self._tools
        if tools is not None and tools.bare and self._wanted.offered:
            yield lark.terminal(rf"[ \n]{{0,2}}[^{{ \t\r\n]{ANY}*") + "?"
        elif tools is not None and not self._wanted.offered:
            yield lark.without(parts_of(tools.begin)[:1])
        else:
            yield lark.terminal(f"{ANY}*")

    def _calls_after_text(self) -> Iterator[tuple[str, str]]:
        """Any text up to the first call, and the calls."""
        assert self._tools is not None
        if self._tools.bare:
            yield f"{self._gap} {self._lark.literal(self._tools.begin)}?", self._calls()
            return
        first = parts_of(self._tools.begin)[0]
        yield self._lark.up_to(first), f"{self._lark.literal(self._tools.begin.removeprefix(first))} {self._calls()}"

    def _calls(self) -> str:
        """All calls, after the begin of the first block."""
        lark, tools = self._lark, self._tools
        assert tools is not None
        call = lark.rule(either(self._call(tools, offered) for offered in self._wanted.offered))
        opening, end = lark.literal(tools.opening), lark.literal(tools.end)
        more = self._wanted.several and tools.most != 1
        if tools.several:
            others = f"({lark.literal(tools.separator)} {call})*" if more else ""
            return f"{opening} {call} {others} {end}"
        others = f"({self._gap} {lark.literal(tools.begin)} {opening} {call} {end})*" if more else ""
        return f"{opening} {call} {end} {others}"

    def _call(self, tools: ToolFormat, offered: Offered) -> str:
        try:
            return self._lark.rule(self._written(tools.call, offered))
        except UnenforcedError as error:
            why = f"{offered.field} uses {error}, which cannot be enforced in this model's format of calls"
            raise RequestError(why, param=offered.field, code="unsupported_grammar") from None

    def _written(self, shape: ObjectCall | NamedCall | TaggedCall, offered: Offered) -> str:
        lark = self._lark
        arguments = ArgumentGrammar(lark, offered.parameters, lenient=not offered.strict)
        if isinstance(shape, ObjectCall):
            return arguments.call(offered.name, shape.arguments)
        if isinstance(shape, NamedCall):
            written, _, rest = shape.name.replace("{f}", offered.name).partition("{n}")
            count = f" {lark.terminal(COUNT)} {lark.literal(rest)}" if "{n}" in shape.name else ""
            call_id = f"({lark.literal(shape.id_mark)} {lark.terminal(CALL_ID)})?" if shape.id_mark else ""
            return (
                f"{lark.literal(shape.before)} {lark.plain(written)} {count} {call_id} {lark.literal(shape.between)}"
                f" {arguments.json()} {lark.literal(shape.after)}"
            )
        begin, name = lark.literal(shape.before), lark.plain(offered.name)
        return f"{begin} {name} {lark.literal(shape.between)} {arguments.tagged(shape)} {lark.literal(shape.after)}"

    def _answer(self, answer: Grammar) -> str:
        """What the answer must be where it calls nothing."""
        lark = self._lark
        match answer.kind:
            case "json_schema":
                return lark.json(_schema(answer), _compact(answer))
            case "regex":
                return lark.terminal(escaped_slashes(answer.text))
            case "choice":
                return either(map(lark.plain, json.loads(answer.text)))
            case "lark" | "ebnf":
                return lark.rule(f"%lark {{\n{_as_lark(answer)}\n}}")
            case _:
                why = f"{answer.field} cannot be combined with tools, nor with the thoughts of this model"
                raise RequestError(why, param=answer.field, code="unsupported_grammar")


def _schema(answer: Grammar) -> dict[str, Any]:
    schema = json.loads(answer.text)
    if (why := passed_over(schema)) is not None:
        raise RequestError(f"{answer.field} {why}", param=answer.field, code="unsupported_grammar")
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return {key: value for key, value in schema.items() if key != "x-guidance"}


def _as_lark(answer: Grammar) -> str:
    if answer.kind == "lark":
        return answer.text
    from llguidance.gbnf_to_lark import any_to_lark  # few requests need it

    try:
        return any_to_lark(answer.text)
    except Exception as error:  # of a converter that says everything by whatever it runs into
        raise RequestError(f"{answer.field} is neither Lark nor GBNF: {error}", param=answer.field) from None


def _compact(answer: Grammar) -> dict[str, Any]:
    between = {"whitespace_pattern": answer.whitespace} if answer.whitespace else {}
    return {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False, "lenient": False, **between}
