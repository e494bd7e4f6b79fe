"""Routes over Starlette's router. FastAPI, which takes longer to import than a small model to load, describes them in
``/openapi.json`` once somebody asks for it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trimaran.server.json_route import handler_of

if TYPE_CHECKING:
    from fastapi import FastAPI

Endpoint = Callable[..., Awaitable[Response]]
E = TypeVar("E", bound=Endpoint)


class Api:
    """Endpoints of one server. ``get``, ``post`` and ``delete`` decorate them; ``build`` makes the application.

    An endpoint takes the parameters of its path and may take the ``request``; or it takes ``(request, body)``, where
    ``body`` is a pydantic model. It answers with a ``Response``.
    """

    def __init__(self, title: str, version: str, describe: Callable[["FastAPI"], None] = lambda _: None) -> None:
        """``describe`` adds to what FastAPI makes of the endpoints, before it is asked for its description."""
        self._title, self._version, self._add_to = title, version, describe
        self._endpoints: list[tuple[str, str, Endpoint]] = []
        self._handlers: dict[type[Exception], Any] = {}
        self._description: bytes | None = None

    def get(self, path: str) -> Callable[[E], E]:
        return self._route("GET", path)

    def post(self, path: str) -> Callable[[E], E]:
        return self._route("POST", path)

    def delete(self, path: str) -> Callable[[E], E]:
        return self._route("DELETE", path)

    def exception_handler(self, kind: type[Exception]) -> Callable[[E], E]:
        """Decorates what answers a request, given it and an error of ``kind``."""

        def add(handler: E) -> E:
            self._handlers[kind] = handler
            return handler

        return add

    def build(self) -> Starlette:
        """The application; routes are tried in the order in which they were added."""
        routes = [_route(path, method, endpoint) for method, path, endpoint in self._endpoints]
        routes.append(Route("/openapi.json", self._openapi, methods=["GET"], include_in_schema=False))
        return Starlette(routes=routes, exception_handlers=self._handlers)

    def _route(self, method: str, path: str) -> Callable[[E], E]:
        def add(endpoint: E) -> E:
            self._endpoints.append((method, path, endpoint))
            return endpoint

        return add

    async def _openapi(self, request: Request) -> Response:  # noqa: ARG002, as Starlette calls it
        if self._description is None:
            self._description = await asyncio.to_thread(self._describe)
        return Response(self._description, media_type="application/json")

    def _describe(self) -> bytes:
        from fastapi import FastAPI

        # No documentation pages: they would load scripts from elsewhere. This has the same content.
        described = FastAPI(title=self._title, version=self._version, docs_url=None, redoc_url=None)
        for method, path, endpoint in self._endpoints:
            described.add_api_route(path, endpoint, methods=[method])
        self._add_to(described)
        return json.dumps(described.openapi()).encode()


def _route(path: str, method: str, endpoint: Endpoint) -> Route:
    route = Route(path, handler_of(endpoint), methods=[method])
    assert route.methods is not None
    route.methods.discard("HEAD")  # which Starlette adds to GET
    return route
