"""HTTP/1.1 connections: uvicorn's protocol, with limits on a request's head and on a client that does not read."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from trimaran.server.errors import INVALID, SERVER, ErrorAnswer, ErrorBody
from trimaran.server.metrics import Metrics

MAX_CONNECTIONS = 2048
RESERVE = 64  # connections beyond, for probes; what else comes on them is refused
HEADER_BYTES = 32  # that a header counts for beside its own: each is an object
MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
STALL_SECONDS = 30.0
TOO_LARGE = f"the request's head exceeds {MAX_HEAD_BYTES:,} bytes"


CROWDED = "trimaran.crowded"  # in the scope: there are more connections than may be
BODY = "trimaran.body"  # in the scope: the response's BodyWriter


class BodyWriter:
    """Writes parts of one response's body without ``await``, between the first part and the last, which are ASGI's."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def paused(self) -> bool:
        """Whether the client is behind; ASGI's ``send`` waits for it."""
        return self._cycle.flow.write_paused

    def write(self, data: bytes) -> None:
        """Sends ``data``, which must not be empty, at once; to a client that has left, nothing."""
        if not self._cycle.disconnected:
            chunk = b"%x\r\n%b\r\n" % (len(data), data)  # uvicorn sends every body without a length so
            self._cycle.transport.write(chunk)


class HttpProtocol(HttpToolsProtocol):
    """Refuses a request whose line and headers are not complete within ``head_seconds`` and ``MAX_HEAD_BYTES``.

    Refuses connections beyond ``max_connections``, but for probes. Drops a client that has an answer waiting and takes
    nothing of it for ``stall_seconds``: its sequences would keep their places for as long as it likes.
    """

    head_seconds = HEAD_SECONDS
    stall_seconds = STALL_SECONDS
    max_connections = MAX_CONNECTIONS
    metrics: Metrics | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._unparsed = 0  # bytes since the parser last found something: one endless header or trailer
        self._stall_timer: asyncio.TimerHandle | None = None
        self._late_comer = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        self._await_head()
        self._late_comer = len(self.connections) > self.max_connections
        if len(self.connections) > self.max_connections + RESERVE:
            self._refuse(503, "the server has as many connections as it may", "connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_done()
        self._stall_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(400, TOO_LARGE, "invalid_http")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._stall_done()
        super().resume_writing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._unparsed = 0
        self._await_head()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value) + HEADER_BYTES)

    def on_headers_complete(self) -> None:
        self._head_done()
        self._unparsed = 0
        super().on_headers_complete()
        self.scope[BODY] = BodyWriter(self.cycle)  # type: ignore[literal-required]  # ours
        if self._late_comer and len(self.connections) > self.max_connections:
            self.scope[CROWDED] = True  # type: ignore[literal-required]  # ours

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed as HTTP is answered in the same shape as any other error."""
        self._refuse(400, msg, "invalid_http")

    def _count(self, size: int) -> None:
        self._unparsed = 0
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError(TOO_LARGE)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._late)

    def _head_done(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        if self._answering:  # the next request's head may take as long as this answer does
            self._await_head()
            return
        self._refuse(408, f"the request's head did not arrive within {self.head_seconds:g} s", "head_timeout")

    def _await_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.stall_seconds, self._stalled, left)

    def _stalled(self, left: int) -> None:
        if self.transport.get_write_buffer_size() < left:  # slow, but reading
            self._await_reader()
        else:
            self._note("stalled")
            self.transport.abort()

    def _stall_done(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        return cycle is not None and not cycle.response_complete

    def _refuse(self, status: int, message: str, code: str) -> None:
        if self._answering:  # nothing may be written into the middle of an answer
            self.transport.close()
            return
        self._note(code)
        kind = INVALID if status < 500 else SERVER
        body = ErrorAnswer(status, ErrorBody(message, kind, code=code)).body
        head = STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()

    def _note(self, code: str) -> None:
        if self.metrics is not None:
            self.metrics.errors.labels(code).inc()
