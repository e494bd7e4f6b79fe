"""Strict JSON for request bodies: no NaN, no half of a surrogate pair, which nothing behind the server could encode."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute


class JsonRequest(Request):
    """Decodes its body with msgspec (RFC 8259) instead of Python's more lenient ``json``."""

    async def json(self) -> Any:
        try:
            return msgspec.json.decode(await self.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise json.JSONDecodeError(str(error), "", 0) from None  # what FastAPI expects


class JsonRoute(APIRoute):
    """A route whose requests are ``JsonRequest``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return handle
