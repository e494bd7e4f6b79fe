"""Answers with thoughts and calls, whole and streamed: OpenAI's shapes, the same content."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from trimaran.base.messages import Token
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint import open_checkpoint
from trimaran.server.dataplane import Generation, Usage
from trimaran.server.metrics import Metrics
from trimaran.server.openai import chat
from trimaran.server.openai.chat_events import Events
from trimaran.server.openai.identity import Identity
from trimaran.server.openai.schema import ChatRequest
from trimaran.text.choice import Piece, joined
from trimaran.text.tokenizer import open_tokenizer
from trimaran.text.tools.answer_format import AnswerFormat
from trimaran.text.tools.families import HERMES, THINK

from .byte_model import CHARACTERS

OFFERED = {"look": {"type": "object", "properties": {"place": {"type": "string"}}}}
SAID = (
    "They ask.</think>\n\nI look.\n"
    '<tool_call>\n{"name": "look", "arguments": {"place": "here"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
)
WHO = Identity("id", 1, "m", "fp")


class Talk:
    """A request whose choices say what a test gives them, one character a token, some tokens a piece."""

    def __init__(self, byte_model, *texts: str, finish: Any = "stop", enforced: bool = False, **options: Any) -> None:
        with open_checkpoint(byte_model) as checkpoint:
            tokenizer = open_tokenizer(checkpoint)
        self.request = ChatRequest(model="m", messages=[{"role": "user", "content": "x"}], n=len(texts), **options)
        self.metrics = Metrics()
        self.plane: Any = SimpleNamespace(tokenizer=tokenizer, metrics=self.metrics)
        self.run: Any = SimpleNamespace(usage=Usage(3, 1, sum(map(len, texts))))
        form = AnswerFormat(tokenizer, HERMES, THINK).form("begun", OFFERED)
        self.asked = chat.Asked(Generation((), SamplingParams()), form, 0, enforced)
        self.pieces = [list(self._pieces(choice, text, finish)) for choice, text in enumerate(texts)]

    def _pieces(self, choice: int, text: str, finish: Any):
        for begin in range(0, len(text), 3):
            part = text[begin : begin + 3]
            tokens = tuple(Token(CHARACTERS.index(char), -1.0, []) for char in part)
            last = begin + 3 >= len(text)
            offsets = tuple(range(begin, begin + len(part)))
            yield Piece(choice, part, tokens, offsets, len(part), finish if last else None)

    def whole(self) -> ChatCompletion:
        async def collect():
            return [joined(pieces) for pieces in self.pieces]

        self.run.collect = collect
        answer = asyncio.run(chat.whole(self.run, self.request, self.asked, WHO, self.plane))
        return ChatCompletion.model_validate_json(msgspec.json.encode(answer))

    def chunks(self) -> list[ChatCompletionChunk]:
        events = Events(self.run, self.request, self.asked, WHO, self.plane)
        data = b"".join(events.of(piece) for pieces in self.pieces for piece in pieces) + events.last()
        return [
            ChatCompletionChunk.model_validate(json.loads(event.removeprefix(b"data: ")))
            for event in data.split(b"\n\n")
            if event
        ]


def counts(talk: Talk) -> tuple[float, float]:
    return tuple(talk.metrics.tool_calls.labels(outcome)._value.get() for outcome in ("parsed", "malformed"))


def test_a_whole_answer_has_openais_shape(byte_model):
    talk = Talk(byte_model, SAID)
    answer = talk.whole()
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.reasoning_content == "They ask."
    assert [(call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls] == [
        ("function", "look", '{"place": "here"}'),
        ("function", "look", "{}"),
    ]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("They ask.</think>")
    assert not hasattr(choice, "malformed_tool_calls")
    assert counts(talk) == (2, 0)


@pytest.mark.parametrize("enforced", [False, True])
@pytest.mark.parametrize("logprobs", [None, True])
def test_a_stream_says_what_the_whole_answer_says(byte_model, enforced, logprobs):
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": logprobs}
    talk = Talk(byte_model, SAID, "No.</think>Hello", enforced=enforced, **options)
    whole = talk.whole()
    *chunks, last = talk.chunks()
    assert last.usage == whole.usage
    for choice in whole.choices:
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert [bool(chunk.delta.role) for chunk in mine] == [True] + [False] * (len(mine) - 1)
        assert "".join(chunk.delta.content or "" for chunk in mine) == choice.message.content
        thought = "".join(getattr(chunk.delta, "reasoning_content", None) or "" for chunk in mine)
        assert thought == choice.message.reasoning_content
        assert [chunk.finish_reason for chunk in mine if chunk.finish_reason] == [choice.finish_reason]
        assert mine[-1].finish_reason
        calls: dict[int, list[str]] = {}
        for part in (part for chunk in mine for part in chunk.delta.tool_calls or ()):
            if part.id is not None:
                assert part.type == "function"
                assert part.function.arguments == ""
                calls[part.index] = [part.function.name, ""]
            else:
                assert part.function.name is None
            calls[part.index][1] += part.function.arguments
        expected = choice.message.tool_calls or ()
        assert list(calls.values()) == [[call.function.name, call.function.arguments] for call in expected]
        entries = [entry for chunk in mine if chunk.logprobs for entry in chunk.logprobs.content]
        assert entries == (choice.logprobs.content if logprobs else [])


def test_only_calls_leave_no_content(byte_model):
    answer = Talk(byte_model, '</think><tool_call>{"name": "look", "arguments": {}}</tool_call>').whole()
    assert answer.choices[0].message.content is None


def test_a_malformed_call_is_reported_and_stays_content(byte_model):
    said = '</think><tool_call>\n{"name": "look"}\n</tool_call>'
    talk = Talk(byte_model, said, stream=True)
    choice = talk.whole().choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == said.removeprefix("</think>")
    assert choice.message.tool_calls is None
    assert choice.malformed_tool_calls == ["a call needs the key 'arguments'"]
    assert talk.chunks()[-1].choices[0].malformed_tool_calls == choice.malformed_tool_calls
    assert counts(talk) == (0, 2)  # of the whole answer and of the stream


def test_an_answer_that_was_cut_says_so(byte_model):
    talk = Talk(byte_model, SAID[:-20], finish="length")
    choice = talk.whole().choices[0]
    assert choice.finish_reason == "length"
    assert len(choice.message.tool_calls) == 1
    cut = Talk(byte_model, SAID[:110], finish="length", enforced=True).whole().choices[0]
    assert cut.message.tool_calls[0].function.arguments.startswith('{"place')
