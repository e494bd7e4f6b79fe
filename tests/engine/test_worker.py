"""The worker's loop in this process; as a process of its own it is tested with the host."""

import socket
import time

import msgspec
import pytest

from trimaran.base.frames import Unframer, frame
from trimaran.base.messages import (
    BEAT_SECONDS,
    Beat,
    Cancel,
    Failed,
    FromEngine,
    FromEngineBatch,
    Started,
    Stop,
    Submit,
    ToEngine,
    ToEngineBatch,
    Token,
    Tokens,
)
from trimaran.engine.role import Alone
from trimaran.engine.worker import Channel, Stopping, serve, take
from trimaran.kernels.step import StepOutputs

from .driving import greedy, null_engine


class Script:
    """A channel whose host says one batch after the other, whenever it is asked, and then stops."""

    def __init__(self, *batches: list[ToEngine], deaf_for: int = 0) -> None:
        self.batches = list(batches)
        self.deaf_for = deaf_for
        self.sent: list[FromEngine] = []

    def receive(self, wait: float, others: object = ()) -> list[ToEngine]:
        assert 0 <= wait <= BEAT_SECONDS
        return self.batches.pop(0) if self.batches else [Stop(60)]

    def send(self, messages: list[FromEngine]) -> None:
        self.sent += messages

    def flush(self, wait: float) -> bool:
        if self.deaf_for:
            self.deaf_for -= 1
            return False
        return True


def ends(script: Script) -> dict[str, str | None]:
    return {m.id: m.finish for m in script.sent if isinstance(m, Tokens) and m.finish}


def test_it_greets_answers_and_finishes_before_it_stops():
    script = Script([Submit("a", [1], greedy(5))])
    serve(null_engine(), script, Stopping())
    assert isinstance(script.sent[0], Started)
    assert ends(script) == {"a": "length"}
    assert any(isinstance(message, Beat) for message in script.sent)


def test_what_arrives_together_is_taken_in_before_the_next_step():
    script = Script([Submit("a", [1], greedy(5)), Submit("b", [1], greedy(5)), Cancel("a")])
    serve(null_engine(), script, Stopping())
    assert ends(script) == {"a": "cancelled", "b": "length"}
    assert next(m for m in script.sent if isinstance(m, Tokens)).id == "a"


@pytest.mark.parametrize("overlap", [True, False])
def test_what_arrives_during_a_step_is_in_the_next_one(overlap):
    class Host(Script):
        def receive(self, wait: float, others: object = ()) -> list[ToEngine]:
            arrived, self.batches = self.batches, []
            return [message for batch in arrived for message in batch]

    engine, host = null_engine(overlap=overlap), Host([Submit("a", [1], greedy(9))])
    executor, sequences = engine._executor, []
    finish = executor.finish

    def finish_while_the_host_speaks() -> StepOutputs:
        sequences.append(len(executor._started.slots))
        says = {3: Submit("b", [1], greedy(2)), 7: Stop(60)}
        host.batches += [[says[len(sequences)]]] if len(sequences) in says else []
        return finish()

    executor.finish = finish_while_the_host_speaks
    serve(engine, host, Stopping())
    assert sequences == [1, 1, 1, 2, 2, 1, 1, 1, 1]


def test_a_host_that_does_not_read_delays_messages_and_loses_none():
    ours, theirs = socket.socketpair()
    channel = Channel(theirs.detach())
    said = [[Tokens("a", [Token(i)])] * 50 for i in range(1000)]
    heard: list[list[FromEngine]] = []
    unframer, decoder = Unframer(), msgspec.msgpack.Decoder(FromEngineBatch)
    for messages in said:
        channel.send(messages)
        while not channel.flush(0):
            heard += [decoder.decode(data).messages for data in unframer.feed(ours.recv(1 << 20))]
    channel.close()
    while data := ours.recv(1 << 20):
        heard += [decoder.decode(message).messages for message in unframer.feed(data)]
    ours.close()
    assert heard == said


def test_a_channel_takes_in_everything_and_notices_a_host_that_left():
    ours, theirs = socket.socketpair()
    channel = Channel(theirs.detach())
    assert channel.receive(0) == []
    sent = [[Cancel(str(i)), Cancel("x" * 1000)] for i in range(20)]
    ours.sendall(b"".join(frame(msgspec.msgpack.encode(ToEngineBatch(batch))) for batch in sent))
    assert channel.receive(1) == [message for batch in sent for message in batch]
    ours.close()
    with pytest.raises(ConnectionError):
        channel.receive(1)
    channel.close()


def test_a_deadline_that_has_passed_ends_the_wait_for_a_deaf_host():
    script = Script([Submit("a", [1], greedy(100)), Stop(0)], deaf_for=10**9)
    stopping = Stopping()
    engine = null_engine()
    serve(engine, script, stopping)
    assert stopping.due


def test_the_earlier_of_two_deadlines_counts():
    stopping = Stopping()
    assert not stopping.due
    stopping.ask(100)
    assert not stopping.due
    stopping.ask(0)
    stopping.ask(100)
    assert stopping.due


@pytest.mark.parametrize(
    ("prompt", "kind", "code"),
    [([], "RequestError", "invalid_value"), ([1] * 300, "ContextLengthError", "context_length_exceeded")],
)
def test_a_request_that_cannot_be_taken_is_answered_with_its_error(prompt, kind, code):
    engine = null_engine()
    reply = take(engine, Submit("a", prompt, greedy()), Stopping(), Alone(engine))
    assert isinstance(reply, Failed)
    assert (reply.id, reply.kind, reply.code) == ("a", kind, code)


def test_a_full_queue_says_when_to_try_again():
    engine = null_engine(max_waiting=1)
    assert take(engine, Submit("a", [1], greedy()), Stopping(), Alone(engine)) is None
    reply = take(engine, Submit("b", [1], greedy()), Stopping(), Alone(engine))
    assert isinstance(reply, Failed)
    assert reply.kind == "QueueFullError"
    assert reply.retry_after


def test_a_stopping_engine_takes_nothing_new():
    stopping = Stopping(at=time.monotonic() + 100)
    engine = null_engine()
    reply = take(engine, Submit("a", [1], greedy()), stopping, Alone(engine))
    assert isinstance(reply, Failed)
    assert reply.kind == "EngineDiedError"
