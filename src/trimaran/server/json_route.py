"""Routes that take a JSON body: strict JSON, one model, and nothing between the two.

Strict means no NaN and no half of a surrogate pair, which nothing behind the server could encode.
"""

from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from trimaran.base.errors import RequestError
from trimaran.server.openai.bounds import require_shallow
from trimaran.server.openai.validation import NO_OBJECT, request_error


def handler_of(endpoint: Callable[..., Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """What answers a request by calling ``endpoint``: with ``(request, body)`` if that takes a body, a pydantic model,
    else with the parameters of the path, and the request if it takes one.

    A body that is not what it should be raises ``RequestError``.
    """
    hints = get_type_hints(endpoint)
    model = hints.get("body")
    if model is None:

        async def plain(request: Request) -> Response:
            more = {"request": request} if "request" in hints else {}
            return await endpoint(**more, **request.path_params)

        return plain
    assert issubclass(model, BaseModel)

    async def handle(request: Request) -> Response:
        data = _decoded(request.headers.get("content-type", ""), await request.body())
        try:
            body = model.model_validate(data)
        except ValidationError as error:
            raise request_error(error.errors(include_url=False), data) from None
        return await endpoint(request, body)

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
