"""Server-sent events without a buffer: each event is one write, made when it exists.

Format: WHATWG HTML, "Server-sent events"; OpenAI streams end with ``data: [DONE]``. An error after the first event is
an event of its own that holds the usual error body, and ends the stream.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trimaran.base.errors import TrimaranError
from trimaran.server import errors
from trimaran.server.connection import while_connected

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would otherwise hold events back
]
DONE = b"data: [DONE]\n\n"

log = logging.getLogger(__name__)
_encoder = msgspec.json.Encoder()


def event(value: msgspec.Struct) -> bytes:
    """``value`` as one event."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


class EventStream(Response):
    """A response that writes events as they come and stops making them when the client leaves.

    The status is sent with the first event, so that what fails before it is an ordinary error response.
    """

    def __init__(self, events: AsyncGenerator[bytes], headers: list[tuple[bytes, bytes]]) -> None:
        self.status_code = 200
        self.raw_headers = HEADERS + headers
        self.background = None
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await while_connected(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for data in events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                end = DONE
            except Exception as error:  # the status is out: the error becomes an event
                if not isinstance(error, TrimaranError):
                    log.exception("a stream failed")
                end = b"data: " + errors.answer(error).body + b"\n\n"
            await send({"type": "http.response.body", "body": end})
