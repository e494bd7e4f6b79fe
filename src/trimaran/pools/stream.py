"""A connected socket whose reads and writes have deadlines. One thread may read while another writes."""

import contextlib
import select
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from trimaran.base.errors import TransferError

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Stream:
    """Bytes of a socket, which it owns. Times are those of ``time.monotonic``."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable.register(connected, select.POLLOUT)

    def read(self, into: memoryview, until: float | None) -> None:
        """Fills ``into``. Raises ``TransferError`` when the other side has closed, or has not sent it by ``until``."""
        while into:
            got = self.when_readable(partial(self.socket.recv_into, into), until)
            if got == 0:
                raise TransferError("the other side has closed the connection")
            into = into[got:]

    def write(self, parts: Sequence[Buffer], until: float | None) -> None:
        """Writes all parts. Raises ``TransferError`` as ``read`` does."""
        left = [memoryview(part).cast("B") for part in parts if len(part)]
        while left:
            sent = self.when_writable(partial(self.socket.sendmsg, left), until)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]

    def shutdown(self) -> None:
        """Ends reads and writes that wait in other threads; idempotent."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def end_writing(self) -> None:
        """Lets the other side know that nothing more will come; what it still sends can be read. Idempotent."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def drain(self) -> None:
        """Reads and drops until the other side has closed the connection, it broke, or ``shutdown`` was called."""
        scrap = memoryview(bytearray(1 << 16))
        with contextlib.suppress(TransferError):
            while self.when_readable(lambda: self.socket.recv_into(scrap), None):
                pass

    def close(self) -> None:
        """When no thread uses it any more; idempotent."""
        self.socket.close()

    def when_readable(self, work: Callable[[], T], until: float | None) -> T:
        """What ``work`` on the socket gives once it need not wait to read. Raises as ``read`` does."""
        return _when(work, self._readable, until, "sent nothing")

    def when_writable(self, work: Callable[[], T], until: float | None) -> T:
        """The same, to write."""
        return _when(work, self._writable, until, "took nothing")


def _when(work: Callable[[], T], ready: select.poll, until: float | None, what: str) -> T:
    while True:
        try:
            return work()
        except BlockingIOError:
            pass
        except OSError as error:
            raise TransferError(f"the connection broke: {error.strerror or error}") from None
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TransferError(f"the other side {what} in time")
        ready.poll(None if left is None else left * 1000 + 1)
