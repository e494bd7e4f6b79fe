"""Turns pydantic's findings about a body into one sentence that names the field as the client wrote it."""

from collections.abc import Sequence
from typing import Any

from trimaran.base.errors import RequestError

_KINDS = {  # what a value is not, by the finding's type
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
NO_OBJECT = "the body must be a JSON object, sent with content-type application/json"


def request_error(findings: Sequence[Any], body: Any) -> RequestError:
    """The most telling of ``findings`` (pydantic's ``errors()``) about ``body``."""
    if not isinstance(body, dict):
        return RequestError(NO_OBJECT, code="invalid_json")
    finding = max(findings, key=_weight)
    kind = finding["type"]
    context = finding.get("ctx", {})
    where = _path(finding["loc"], body)
    if "field" in context:  # ours: fields.py has said it all but where
        name = f"{where}.{context['field']}" if where else context["field"]
        return RequestError(f"{name} {finding['msg']}", param=name, code=kind)
    if kind == "missing":
        name = ".".join(filter(None, (where, str(finding["loc"][-1]))))
        return RequestError(f"{name} is required", param=name, code="missing_required_parameter")
    if kind in _KINDS:
        wanted = {other["type"]: None for other in findings if _path(other["loc"], body) == where}
        kinds = " or ".join(dict.fromkeys(_KINDS[one] for one in wanted if one in _KINDS))
        return RequestError(f"{where} must be {kinds}", param=where, code="invalid_type")
    if kind == "too_short":
        return RequestError(f"{where} is empty", param=where, code="invalid_value")
    if kind == "too_long":
        return RequestError(
            f"{where} has more than {context['max_length']:,} entries", param=where, code="invalid_value"
        )
    message = finding["msg"]
    other_kind = kind == "literal_error" and not isinstance(finding["input"], str)
    code = "invalid_type" if other_kind else "invalid_value"
    return RequestError(f"{where}: {message[:1].lower()}{message[1:]}", param=where or None, code=code)


def _weight(finding: Any) -> tuple[bool, int, bool]:
    """Ours first, then the deepest, then that of a list of the right kind: the branch of a union that was meant."""
    return "field" in finding.get("ctx", {}), len(finding["loc"]), finding["type"] in ("too_long", "too_short")


def _path(loc: Sequence[str | int], body: Any) -> str:
    """``messages[0].content`` for where ``loc`` leads in ``body``; the names of union branches in it lead nowhere."""
    path, value = "", body
    for step in loc:
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            path, value = f"{path}[{step}]", value[step]
        elif isinstance(value, dict) and step in value:
            path, value = f"{path}.{step}" if path else str(step), value[step]
    return path
