"""The engine process: ``python -m trimaran.engine.worker DESCRIPTOR``, configuration on standard input.

Contract with the host: see ``host/process.py``. All messages that have arrived are taken in between two steps; when
there is nothing to do the process sleeps in ``poll``, and wakes for each beat: leases end by time alone. Sending waits
for the host when too much is under way, so that neither side holds an unbounded queue.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trimaran.base.errors import ConfigError, EngineDiedError, RequestError, TrimaranError
from trimaran.base.failures import failure_of
from trimaran.base.frames import Unframer, frame
from trimaran.base.messages import (
    BEAT_SECONDS,
    Admit,
    Cancel,
    Distrust,
    Embed,
    FromEngine,
    FromEngineBatch,
    Prefill,
    Stop,
    Submit,
    ToEngine,
    ToEngineBatch,
)
from trimaran.engine.canary import Canary, Unwatched
from trimaran.engine.config import EngineConfig
from trimaran.engine.encoder import Encoder
from trimaran.engine.encoder_loop import serve_encoder
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_any
from trimaran.engine.phases import Phases
from trimaran.engine.role import Alone, EngineRole, open_role

FLUSH_SECONDS = 1.0  # for the last messages, once the loop has ended
_PIECE = 1 << 18  # bytes; most that one read takes


class Channel:
    """The engine's end of the socket."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._socket.set_inheritable(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngineBatch)
        self._unframer = Unframer()
        self._unsent = b""

    def receive(self, wait: float, others: Sequence[int] = ()) -> list[ToEngine]:
        """Everything that has arrived; waits up to ``wait`` seconds for the first message, or until one of the
        ``others`` is readable.

        Raises ``ConnectionError`` when the host has gone.
        """
        messages: list[ToEngine] = []
        if wait and not self._wait(wait, others):
            return messages
        while True:
            try:
                data = self._socket.recv(_PIECE)
            except BlockingIOError:
                return messages
            if not data:
                raise ConnectionError("the host has closed its end")
            for message in self._unframer.feed(data):
                messages += self._decoder.decode(message).messages

    def send(self, messages: list[FromEngine]) -> None:
        """Sends in order. What the host leaves no room for waits for ``flush``."""
        self._unsent += frame(self._encoder.encode(FromEngineBatch(messages)))
        self._push()

    def flush(self, wait: float) -> bool:
        """True when nothing waits any more; gives the host up to ``wait`` seconds to make room."""
        if self._unsent and self._writable.poll(wait * 1000):
            self._push()
        return not self._unsent

    def close(self) -> None:
        """Gives the host a moment to take the last messages."""
        until = time.monotonic() + FLUSH_SECONDS
        with contextlib.suppress(ConnectionError):
            while not self.flush(max(0.0, until - time.monotonic())) and time.monotonic() < until:
                pass
        self._socket.close()

    def _wait(self, seconds: float, others: Sequence[int]) -> bool:
        """True when there may be something to receive."""
        if not others:
            return bool(self._readable.poll(seconds * 1000))
        poll = select.poll()
        for descriptor in (self._socket.fileno(), *others):
            poll.register(descriptor, select.POLLIN)
        return any(descriptor == self._socket.fileno() for descriptor, _ in poll.poll(seconds * 1000))

    def _push(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self._socket.send(self._unsent) :]


@dataclass
class Stopping:
    """When to end; None while nobody has asked."""

    at: float | None = None

    @property
    def due(self) -> bool:
        return self.at is not None and time.monotonic() >= self.at

    def ask(self, deadline: float) -> None:
        """Ends after at most ``deadline`` seconds; the earliest request counts."""
        at = time.monotonic() + deadline
        self.at = at if self.at is None else min(self.at, at)


def serve(
    engine: Engine,
    channel: Channel,
    stopping: Stopping,
    canary: Canary | None = None,
    role: EngineRole | None = None,
) -> None:
    """Finish a step, receive, start the next one, send, until asked to stop and done with what runs."""
    role = role or Alone(engine)
    watch = canary or Unwatched(engine)
    channel.send([engine.info])
    beat = time.monotonic()
    while stopping.at is None or not engine.idle:
        engine.finish()  # first: what has come while it ran is in the next step
        if stopping.due:
            engine.cancel_all()
        engine.reap(time.monotonic())
        rests = (engine.idle or engine.stalled) and not role.pressing
        wait = max(0.0, beat - time.monotonic()) if rests else 0.0
        arrived = channel.receive(wait, role.filenos() if rests else ())
        replies = [reply for message in arrived if (reply := take(engine, message, stopping, role))]
        replies += role.turn()
        if stopping.at is None:
            watch.turn(time.monotonic())
        replies += watch.sift(engine.step())
        if time.monotonic() >= beat:
            replies.append(role.told(watch.stats()))
            beat = time.monotonic() + BEAT_SECONDS
        if replies:
            channel.send(replies)
        while not channel.flush(BEAT_SECONDS):
            if stopping.due:
                return


def take(engine: Engine, message: ToEngine, stopping: Stopping, role: EngineRole) -> FromEngine | None:
    """Hands one message to the engine; a request that cannot be taken is answered at once."""
    match message:
        case Submit() | Admit() | Prefill():
            try:
                if stopping.at is not None:
                    raise EngineDiedError("the engine is stopping")
                if isinstance(message, Submit):
                    engine.submit(message)
                else:
                    role.take(message)
            except TrimaranError as error:
                return failure_of(message.id, error)
        case Embed():
            return failure_of(message.id, RequestError("this model makes text, and no vectors", param="model"))
        case Cancel(id=request_id):
            role.cancel(request_id)
        case Distrust(source=source):
            role.distrust(source)
        case Stop(deadline=deadline):
            stopping.ask(deadline)
    return None


def watch_host() -> None:
    """Ends the process when standard input does: the host is gone. A thread of its own, so also while a model loads."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def read_config() -> dict[str, Any]:
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 65536)
        if not byte:
            raise ConfigError("the configuration on standard input ended early")
        line += byte
    values: dict[str, Any] = msgspec.json.decode(line)
    return values


def main() -> int:
    phases = Phases.of_process()
    gc.disable()  # what is being loaded stays
    channel = Channel(int(sys.argv[1]))
    try:
        values = read_config()
        threading.Thread(target=watch_host, daemon=True).start()
        config = EngineConfig.from_json(values)
        if config.cores:
            os.sched_setaffinity(0, config.cores)
        engine = load_any(config, phases)
        role = None if isinstance(engine, Encoder) else open_role(engine, config.pool)
        if config.pin_threads:  # this thread alone, to the core that the executor has left to it
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        gc.freeze()  # collections need not walk what has been loaded
        gc.enable()
    except TrimaranError as error:
        channel.send([failure_of("", error)])
        channel.close()
        return 1
    stopping = Stopping()
    for number in (signal.SIGTERM, signal.SIGINT):  # until here they end the process at once
        signal.signal(number, lambda *_: stopping.ask(0.0))
    try:
        canary = Canary(engine, engine.info.canary, config.canary_interval) if config.canary_interval else None
        if isinstance(engine, Encoder):
            serve_encoder(engine, channel, stopping, canary)
        else:
            serve(engine, channel, stopping, canary, role)
    except ConnectionError:  # nobody listens any more
        return 1
    except EngineDiedError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if role is not None:
            role.close()
        engine.close()
        channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
