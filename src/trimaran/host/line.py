"""The host's end of the stream to a worker."""

import asyncio
import logging
import time
from collections import deque

from trimaran.base.frames import Unframer, frame

log = logging.getLogger(__name__)

MESSAGES_WAITING = 256  # read and not taken; more stay with the worker, which then waits


class Line(asyncio.Protocol):
    """Messages to and from one worker over a connected socket; ``heard`` is when the last bytes came (monotonic)."""

    def __init__(self) -> None:
        self.heard = time.monotonic()
        self._unframer = Unframer()
        self._messages: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._lost = asyncio.Event()
        self._draining = False
        self._transport: asyncio.Transport | None = None

    async def receive(self) -> bytes | None:
        """The next message; None once the line is closed and everything that came has been taken."""
        while not self._messages:
            if self._lost.is_set():
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        if not self._messages:
            self._resume()
        return message

    async def send(self, message: bytes) -> bool:
        """Sends a message and waits while the worker is far behind; False when the line is closed."""
        if self._transport is None or self._lost.is_set():
            return False
        self._transport.write(frame(message))
        await self._writable.wait()
        return not self._lost.is_set()

    async def drain(self, seconds: float) -> None:
        """Reads what a worker that has ended left on the line, for at most ``seconds``, and closes it."""
        self._draining = True
        self._resume()
        try:
            await asyncio.wait_for(self._lost.wait(), seconds)
        except TimeoutError:  # a child of the worker holds its end open
            self.close()
            await self._lost.wait()

    def close(self) -> None:
        """Drops what has not been sent; what has arrived can still be received. Idempotent."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # what sockets get
        self._transport = transport
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self.heard = time.monotonic()
        try:
            self._messages += self._unframer.feed(data)
        except ConnectionError as error:
            log.error("the line to the engine is broken: %s", error)
            self.close()
        if self._messages:
            self._arrived.set()
        if len(self._messages) > MESSAGES_WAITING and not self._draining and self._transport is not None:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, _: Exception | None) -> None:
        for event in (self._lost, self._writable, self._arrived):
            event.set()

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
