"""Runs an answer's tokens through text streaming and the parser, as a server does."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.text.template_families import Family as Vocabulary
from tests.text.template_vocabulary import ids_of, tokenizer_of

from trimaran.base.messages import Token
from trimaran.text.stream import TextStream
from trimaran.text.tokenizer import Tokenizer
from trimaran.text.tools.answer_format import AnswerFormat
from trimaran.text.tools.deltas import Arguments, CallBegin, Content, Delta, Thought
from trimaran.text.tools.families import REASONING_FORMATS, TOOL_FORMATS
from trimaran.text.tools.parser import AnswerParser

from .transcripts import OFFERED, Family


@dataclass
class Answer:
    content: str = ""
    thought: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)  # id, name, arguments
    malformed: list[str] = field(default_factory=list)

    def read(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            match delta:
                case Content(text):
                    self.content += text
                case Thought(text):
                    self.thought += text
                case CallBegin(index, call_id, name):
                    assert index == len(self.calls)
                    self.calls.append((call_id, name, ""))
                case Arguments(index, text):
                    assert index == len(self.calls) - 1
                    call_id, name, before = self.calls[index]
                    self.calls[index] = (call_id, name, before + text)

    @property
    def parsed(self) -> tuple[tuple[str, Any], ...]:
        return tuple((name, json.loads(arguments)) for _, name, arguments in self.calls)


@lru_cache(maxsize=64)
def vocabulary(family: Family) -> Vocabulary:
    return Vocabulary(family.format, ("<eos>", *family.control), eos="<eos>")


@lru_cache(maxsize=64)
def tokenizer(family: Family) -> Tokenizer:
    return tokenizer_of(vocabulary(family))


@lru_cache(maxsize=64)
def answer_format(family: Family) -> AnswerFormat:
    reasoning = None if family.reasoning is None else REASONING_FORMATS[family.reasoning]
    return AnswerFormat(tokenizer(family), TOOL_FORMATS[family.format], reasoning)


def ids(family: Family, text: str) -> list[int]:
    return ids_of(vocabulary(family), text)


def run(
    family: Family,
    tokens: Sequence[int],
    cuts: Sequence[int] = (),
    *,
    thinking: Any = "maybe",
    enforced: bool = False,
    offered: Any = OFFERED,
) -> Answer:
    """Feeds the tokens, cut at ``cuts``."""
    form = answer_format(family).form(thinking, offered)
    count = itertools.count()
    parser = AnswerParser(form, lambda name: f"{name}-{next(count)}", enforced=enforced)
    stream = TextStream(tokenizer(family), message=True)
    answer, given = Answer(), 0
    edges = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    for begin, end in itertools.pairwise(edges):
        delta = stream.feed([Token(i) for i in tokens[begin:end]])
        answer.read(parser.feed(form.markup.merged(delta.text, delta.tokens, delta.offsets, given)))
        given += len(delta.text)
    delta = stream.finish()
    answer.read(parser.feed(form.markup.merged(delta.text, delta.tokens, delta.offsets, given)))
    answer.read(parser.finish())
    answer.malformed = parser.malformed
    assert parser.calls == len(answer.calls)
    return answer
