"""Sends a request to the application from within: what a line of a batch is answered by is what answers everybody."""

import asyncio
import logging
import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Scope

from trimaran.server import errors
from trimaran.server.guards import ARRIVED, LATER, TENANT
from trimaran.server.tenants import Tenant

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """A whole response. ``code`` is that of its error, if it is one."""

    status: int
    request_id: str
    body: bytes  # JSON
    code: str | None


async def call(app: ASGIApp, path: str, body: bytes, tenant: Tenant) -> Answer:
    """``app``'s answer to a POST of JSON that ``tenant`` sends and that gives way to others.

    ``app`` stands behind the guards. Cancelling this is what a client does that leaves.
    """
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "client": None, "server": None,
        "headers": [(b"content-type", b"application/json")],
        ARRIVED: time.perf_counter(), TENANT: tenant, LATER: True,
    }  # fmt: skip
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, request_id = 500, ""
    parts: list[bytes] = []

    async def receive() -> Message:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()  # for good: a line does not leave
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status, request_id
        if message["type"] == "http.response.start":
            status = message["status"]
            named = dict(message.get("headers", ()))
            request_id = named.get(b"x-request-id", b"").decode("latin-1")
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception:
        if not parts:
            raise
        log.exception("a bug ended a line of a batch")  # which has its 500, as a client would
    return Answer(status, request_id, b"".join(parts), scope.get(errors.CODE))
