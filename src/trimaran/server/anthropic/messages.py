"""``POST /v1/messages``: pieces to a whole message, or to its events."""

import json
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from trimaran.server.anthropic import answers
from trimaran.server.dataplane import DataPlane, Run
from trimaran.server.errors import ErrorAnswer
from trimaran.server.openai.chat import Asked, Ending
from trimaran.server.openai.identity import Identity
from trimaran.text.choice import Piece
from trimaran.text.tools.choice_reader import Answer
from trimaran.text.tools.deltas import Arguments, CallBegin, Content, Delta, Thought

_encode = msgspec.json.Encoder().encode


async def whole(run: Run, asked: Asked, identity: Identity, plane: DataPlane) -> answers.Message:
    """Waits for the answer."""
    (piece,) = await run.collect()
    assert piece.finish is not None
    if asked.form is None:
        answer, calls, malformed = Answer(piece.text), 0, Ending(piece.finish).malformed
    else:
        reader = asked.reader()
        answer, calls = Answer.of(reader.read(piece)), reader.calls
        malformed = Ending.of(reader, piece.finish, plane.metrics).malformed
    end = answers.ending(piece.finish, piece.stop_reason, calls)
    return answers.Message(
        id=identity.id,
        model=identity.model,
        content=list(_blocks(answer)),
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=answers.usage(run.usage),
        malformed_tool_calls=malformed,
    )


def _blocks(answer: Answer) -> Iterator[answers.Block]:
    """A call that ``max_tokens`` has cut is left out: its input is no object."""
    if answer.thought:
        yield answers.Thinking(answer.thought)
    if answer.content:
        yield answers.Text(answer.content)
    for call in answer.calls:
        with suppress(ValueError):
            yield answers.ToolUse(call.id, call.name, json.loads(call.arguments))


class Events:
    """The events of one message: its blocks one after the other, each with a start, deltas and a stop."""

    done = b""

    def __init__(self, run: Run, asked: Asked, identity: Identity, plane: DataPlane) -> None:
        self._run, self._asked, self._identity, self._plane = run, asked, identity, plane
        self._reader = None if asked.form is None else asked.reader()
        self._begun = False
        self._index = -1
        self._kind: type[Delta] | None = None  # of the block that is open

    def of(self, piece: Piece) -> bytes:
        deltas: list[Delta] = [Content(piece.text)] if piece.text else []
        if self._reader is not None:
            deltas = self._reader.read(piece)
        if not deltas and piece.finish is None:
            return b""
        return b"".join(map(event, self._events(piece, deltas)))

    def last(self) -> bytes:
        return event(answers.MessageStop())

    def failed(self, answer: ErrorAnswer) -> bytes:
        return _named("error", answers.error_of(answer))

    def _events(self, piece: Piece, deltas: list[Delta]) -> Iterator[answers.Event]:
        if not self._begun:
            self._begun = True
            yield answers.MessageStart(
                answers.Message(
                    id=self._identity.id,
                    model=self._identity.model,
                    content=[],
                    stop_reason=None,
                    stop_sequence=None,
                    usage=answers.usage(self._run.usage),
                )
            )
        for delta in deltas:
            yield from self._delta(delta)
        if piece.finish is None:
            return
        yield from self._stop()
        calls = 0 if self._reader is None else self._reader.calls
        end = answers.ending(piece.finish, piece.stop_reason, calls)
        ours = (
            Ending(piece.finish) if self._reader is None else Ending.of(self._reader, piece.finish, self._plane.metrics)
        )
        yield answers.MessageDelta(end, answers.usage(self._run.usage), ours.malformed)

    def _delta(self, delta: Delta) -> Iterator[answers.Event]:
        match delta:
            case Content(text):
                yield from self._open(Content, answers.Text(""))
                yield answers.BlockDelta(self._index, answers.TextDelta(text))
            case Thought(text):
                yield from self._open(Thought, answers.Thinking(""))
                yield answers.BlockDelta(self._index, answers.ThinkingDelta(text))
            case CallBegin(_, call_id, name):
                yield from self._stop()
                yield from self._open(CallBegin, answers.ToolUse(call_id, name, {}))
            case Arguments(_, text):
                yield answers.BlockDelta(self._index, answers.InputDelta(text))

    def _open(self, kind: type[Delta], block: answers.Block) -> Iterator[answers.Event]:
        if self._kind is kind:
            return
        yield from self._stop()
        self._index += 1
        self._kind = kind
        yield answers.BlockStart(self._index, block)

    def _stop(self) -> Iterator[answers.Event]:
        if self._kind is not None:
            self._kind = None
            yield answers.BlockStop(self._index)


def event(value: answers.Event) -> bytes:
    """``value`` as one event."""
    return _named(str(value.__struct_config__.tag), value)


def _named(name: str, value: msgspec.Struct) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode(value) + b"\n\n"
