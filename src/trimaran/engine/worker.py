"""The engine process: ``python -m trimaran.engine.worker ADDRESS``, configuration on standard input.

Contract with the host: see ``host/process.py``. All messages that have arrived are taken in between two steps; when
there is nothing to do the process sleeps in ``poll``. Sending waits for the host when too much is under way, so that
neither side holds an unbounded queue.
"""

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from trimaran.base.errors import ConfigError, EngineDiedError, TrimaranError
from trimaran.base.failures import failure_of
from trimaran.base.messages import (
    BEAT_SECONDS,
    Cancel,
    FromEngine,
    FromEngineBatch,
    Stop,
    Submit,
    ToEngine,
    ToEngineBatch,
)
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine

BATCHES_UNDER_WAY = 256
FLUSH_SECONDS = 1.0  # for the last messages, once the loop has ended


class Channel:
    """The engine's end of the socket."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, BATCHES_UNDER_WAY)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngineBatch)

    def receive(self, wait: float) -> list[ToEngine]:
        """Everything that has arrived; waits up to ``wait`` seconds for the first message."""
        messages: list[ToEngine] = []
        if wait and not self._socket.poll(int(wait * 1000)):
            return messages
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            messages += self._decoder.decode(data).messages

    def send(self, messages: list[FromEngine]) -> bool:
        """Sends in order; False when the host is so far behind that nothing could be sent for a while."""
        if not self._socket.poll(int(BEAT_SECONDS * 1000), zmq.POLLOUT):
            return False
        self._socket.send(self._encoder.encode(FromEngineBatch(messages)))
        return True

    def close(self) -> None:
        self._context.destroy(linger=int(FLUSH_SECONDS * 1000))


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


def serve(engine: Engine, channel: Channel, stopping: Stopping) -> None:
    """Receive, step, send, until asked to stop and done with what runs."""
    channel.send([engine.info])
    beat = time.monotonic()
    while stopping.at is None or not engine.idle:
        if stopping.due:
            engine.cancel_all()
        wait = max(0.0, beat - time.monotonic()) if engine.idle else 0.0
        replies = [reply for message in channel.receive(wait) if (reply := take(engine, message, stopping))]
        replies += engine.step()
        if time.monotonic() >= beat:
            replies.append(engine.stats())
            beat = time.monotonic() + BEAT_SECONDS
        while replies and not channel.send(replies):
            if stopping.due:
                return


def take(engine: Engine, message: ToEngine, stopping: Stopping) -> FromEngine | None:
    """Hands one message to the engine; a request that cannot be taken is answered at once."""
    match message:
        case Submit():
            try:
                if stopping.at is not None:
                    raise EngineDiedError("the engine is stopping")
                engine.submit(message)
            except TrimaranError as error:
                return failure_of(message.id, error)
        case Cancel(id=request_id):
            engine.cancel(request_id)
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
    channel = Channel(sys.argv[1])
    try:
        values = read_config()
        threading.Thread(target=watch_host, daemon=True).start()
        engine = load_engine(EngineConfig.from_json(values))
    except TrimaranError as error:
        channel.send([failure_of("", error)])
        channel.close()
        return 1
    stopping = Stopping()
    for number in (signal.SIGTERM, signal.SIGINT):  # until here they end the process at once
        signal.signal(number, lambda *_: stopping.ask(0.0))
    try:
        serve(engine, channel, stopping)
    finally:
        engine.close()
        channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
