"""ASGI wrappers around the app. Each does one thing, and none touches a response on its way out, streams included."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trimaran.server import errors
from trimaran.server.anthropic.answers import error_body
from trimaran.server.caller import Caller
from trimaran.server.errors import ErrorAnswer
from trimaran.server.http import CROWDED
from trimaran.server.metrics import Metrics
from trimaran.server.tenants import RateLimitError, Tenant, Tenants

DISCARD_SECONDS = 1.0
ARRIVED = "trimaran.arrived"  # in the scope: time.perf_counter() when the request began
TENANT = "trimaran.tenant"  # in the scope, behind ``Admit``: the Tenant whose request it is
LATER = "trimaran.later"  # in the scope: the request gives way to others
LONG_SESSION = 256  # characters of x-session-affinity that count
LOGGED_PATH = 200  # characters
PROBES = ("/health", "/ready", "/metrics")

log = logging.getLogger("trimaran.access")


async def send_error(scope: Scope, send: Send, answer: ErrorAnswer) -> None:
    """Sends a whole error response to the request of ``scope``."""
    scope[errors.CODE] = answer.error.code
    body = error_body(scope["path"], answer)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def discard(receive: Receive) -> None:
    """Reads on for a moment: a client that is still sending when we close would not see the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass


def caller(request: Request) -> Caller:
    """Who sent ``request``, behind ``Observe`` and ``Admit``."""
    scope = request.scope
    session = request.headers.get("x-session-affinity", "")[:LONG_SESSION]
    return Caller(scope[ARRIVED], scope[TENANT], session, later=scope.get(LATER, False))


class Observe:
    """Counts every request by its route and logs it by its path. Never a header, a query or a body.

    An exception that comes back after the answer (Starlette raises it again) ends here.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = [route for route in routes if isinstance(route, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = scope[ARRIVED] = time.perf_counter()
        status = 499  # as nginx says: the client left before there was an answer
        answered = False

        async def observed(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status = message["status"]
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, observed)
        except Exception:
            if not answered:
                raise
            log.exception("a bug ended a request")  # the client has its 500 and may go on using the connection
        finally:
            endpoint = self._endpoint(scope)
            self._metrics.requests.labels(endpoint, str(status)).inc()
            if (code := scope.get(errors.CODE)) is not None:
                self._metrics.errors.labels(code).inc()
            level = logging.DEBUG if endpoint in PROBES else logging.INFO
            path = quote(scope["path"], safe="/:@")[:LOGGED_PATH]  # quoted, it cannot forge a line
            log.log(level, "%s %s %d %.3f s", scope["method"], path, status, time.perf_counter() - begun)

    def _endpoint(self, scope: Scope) -> str:
        """The route of a request, also of one that was refused before it got there; paths would be without bound."""
        known = (route.path_format for route in self._routes if route.matches(scope)[0] is not Match.NONE)
        return next(known, "other")


class Admit:
    """Says whose a request is: 401 to nobody's, except on ``open_paths``; 503 where there are too many connections."""

    def __init__(self, app: ASGIApp, tenants: Tenants, open_paths: Sequence[str]) -> None:
        self._app = app
        self._tenants = tenants
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        tenant = self._tenants.of(list(_authorizations(scope)))
        if tenant is None:
            headers = {"www-authenticate": "Bearer"}
            message = "a valid API key is required: send it as 'Authorization: Bearer KEY'"
            await send_error(scope, send, errors.http_error(401, message, headers=headers))
            return
        if scope.get(CROWDED) and scope["path"] not in PROBES:
            crowded = errors.TooManyConnectionsError("the server has as many connections as it may (--max-connections)")
            await send_error(scope, send, errors.answer(crowded))
            return
        scope[TENANT] = tenant
        await self._app(scope, receive, send)


def _authorizations(scope: Scope) -> Iterator[bytes]:
    """What a request says for itself; ``x-api-key`` is how clients of Anthropic's API send a key."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            yield value
        elif name == b"x-api-key":
            yield b"Bearer " + value


class LimitTenants:
    """Answers 429 to the POST of a tenant that has as much as it may have, before its body is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant: Tenant | None = scope.get(TENANT)
        if tenant is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            tenant.enter()
        except RateLimitError as error:
            await send_error(scope, send, errors.answer(error))
            return
        try:
            await self._app(scope, receive, send)
        finally:
            tenant.leave()


class ReadBody:
    """Reads the body before the app runs: at most ``limit`` bytes, within ``seconds``; not on ``streamed`` paths, whose
    routes read it themselves."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float, streamed: Sequence[str] = ()) -> None:
        self._app = app
        self._limit = limit
        self._seconds = seconds
        self._streamed = frozenset(streamed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._streamed:
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._read(scope, receive)
        except TimeoutError:
            late = errors.BodyTimeoutError(f"the body did not arrive within {self._seconds:g} s")
            await send_error(scope, send, errors.answer(late))
            return
        except errors.BodyTooLargeError as error:
            await discard(receive)
            await send_error(scope, send, errors.answer(error))
            return
        if body is None:
            return
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body, or ``None`` when the client left."""
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if announced.isdigit() and int(announced) > self._limit:
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._limit:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> errors.BodyTooLargeError:
        return errors.BodyTooLargeError(f"the body exceeds the limit of {self._limit:,} bytes (--max-body-bytes)")
