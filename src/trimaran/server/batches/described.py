"""What ``/openapi.json`` says that files and batches may be asked, where no pydantic model does: forms and queries."""

from typing import Any

from trimaran.server.batches.requests import LEAST_KEPT, MOST_KEPT

_STRING = {"type": "string"}
_FORM = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": ["batch"]},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": LEAST_KEPT, "maximum": MOST_KEPT},
    },
    "required": ["file", "purpose"],
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
    "additionalProperties": False,
}


def operations() -> dict[str, dict[str, Any]]:
    """Parts of operations, by method and path."""
    order = {"type": "string", "enum": ["asc", "desc"]}
    files = [_query("after", _STRING), _query("limit", _limit(10_000)), _query("order", order)]
    return {
        "post /v1/files": {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}},
        "get /v1/files": {"parameters": [*files, _query("purpose", _STRING)]},
        "get /v1/batches": {"parameters": [_query("after", _STRING), _query("limit", _limit(100))]},
    }


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _limit(most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": most}
