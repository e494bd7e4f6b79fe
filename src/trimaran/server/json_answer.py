"""A value as the JSON body of an answer."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response


def json_answer(value: msgspec.Struct | Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)
