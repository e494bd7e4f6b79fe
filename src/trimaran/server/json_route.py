"""Routes that take a JSON body: strict JSON, one model, and nothing between the two.

FastAPI's own handler is general, and slow in the time to the first token; it still describes the routes in
``/openapi.json``. Strict means no NaN and no half of a surrogate pair, which nothing behind the server could encode.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from trimaran.base.errors import RequestError
from trimaran.server.openai.bounds import require_shallow
from trimaran.server.openai.validation import NO_OBJECT, request_error


class JsonRoute(APIRoute):
    """A route whose endpoint, if it takes a body, takes ``(request, body)`` with one model as ``body``.

    The endpoint answers with a ``Response``. A body that is not what it should be raises ``RequestError``.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.body_field is None:
            return super().get_route_handler()
        model, endpoint = self.body_field.field_info.annotation, self.endpoint
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)

        async def handle(request: Request) -> Response:
            data = _decoded(request.headers.get("content-type", ""), await request.body())
            try:
                body = model.model_validate(data)
            except ValidationError as error:
                raise request_error(error.errors(include_url=False), data) from None
            response: Response = await endpoint(request, body)
            return response

        return handle


def _decoded(content_type: str, body: bytes) -> Any:
    """The body's JSON by RFC 8259, if it says that it is JSON: a browser's form cannot, without asking for leave."""
    kind = content_type.partition(";")[0].strip().lower()
    if not body or not (kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))):
        raise RequestError(NO_OBJECT, code="invalid_json")
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    require_shallow(body, value)
    return value
