"""Server-sent events without a buffer: what a step adds to a stream is one write, made when it exists.

Format: WHATWG HTML, "Server-sent events"; OpenAI streams end with ``data: [DONE]``. An error after the first event is
an event of its own that holds the usual error body, and ends the stream.
"""

import logging
from typing import Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trimaran.base.errors import TrimaranError
from trimaran.server import errors
from trimaran.server.connection import while_connected
from trimaran.server.dataplane import Run
from trimaran.server.http import BODY, BodyWriter
from trimaran.text.choice import Piece

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would otherwise hold events back
]
DONE = b"data: [DONE]\n\n"
MARK = "\0"

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


def event(value: msgspec.Struct) -> bytes:
    """``value`` as one event."""
    return b"data: " + _encode(value) + b"\n\n"


class TextEvent:
    """An event in which a text varies and the rest does not: encoded once a stream, around the text."""

    def __init__(self, value: msgspec.Struct) -> None:
        """``value`` has ``MARK`` where the text will be; what follows it in the encoding comes from no client."""
        self._before, mark, self._after = event(value).rpartition(_encode(MARK))
        assert mark

    def __call__(self, text: str) -> bytes:
        """The same bytes as ``event`` of the value with ``text`` in it."""
        return self._before + _encode(text) + self._after


class Events(Protocol):
    """What a stream says, in its protocol. ``done`` ends it, if all went well."""

    @property
    def done(self) -> bytes: ...

    def of(self, piece: Piece) -> bytes:
        """One event, or ``b""`` when ``piece`` shows nothing."""
        ...

    def last(self) -> bytes:
        """What stands between the pieces and ``done``; called once the run is over."""
        ...

    def failed(self, answer: errors.ErrorAnswer) -> bytes:
        """An error that ends the stream."""
        ...


class DataEvents:
    """How streams of chats and completions end."""

    done = DONE

    def failed(self, answer: errors.ErrorAnswer) -> bytes:
        return b"data: " + answer.body + b"\n\n"


class EventStream(Response):
    """A response that writes a run's events as they come and ends the run when the client leaves.

    The status is sent with the first event, so that what fails before it is an ordinary error response.
    """

    def __init__(self, run: Run, events: Events, headers: list[tuple[bytes, bytes]]) -> None:
        self.status_code = 200
        self.raw_headers = HEADERS + headers
        self.background = None
        self._run = run
        self._events = events
        self._begun = False
        self._held = b""  # what the client is not ready for

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._writer: BodyWriter = scope[BODY]
        self._send = send
        await while_connected(receive, self._stream())

    async def _stream(self) -> None:
        try:
            async with self._run as run:
                await run.deliver(self._take, self._ready)
            end = self._events.last() + self._events.done
            await self.ended()
        except Exception as error:
            if not self._begun:
                raise
            if not isinstance(error, TrimaranError):  # the status is out: the error becomes an event
                log.exception("a stream failed")
            answer = errors.answer(error)
            self._scope[errors.CODE] = answer.error.code
            end = self._events.failed(answer)
        await self._send({"type": "http.response.body", "body": end})

    async def ended(self) -> None:
        """Called when all has been said but the last events."""

    def _take(self, pieces: list[Piece]) -> bool:
        data = b"".join(map(self._events.of, pieces))
        if not data:
            return True
        if not self._begun or self._writer.paused:
            self._held = data
            return False
        self._writer.write(data)
        return True

    async def _ready(self) -> None:
        data, self._held = self._held, b""
        if not self._begun:
            self._begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
