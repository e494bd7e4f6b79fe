"""How much of everything a request may hold: checked before anything is made of it.

Sizes of a whole request are limited elsewhere: its head (``http.py``), its body (``guards.py``), its tokens
(``dataplane.py``).
"""

from typing import Any

import msgspec

from trimaran.base.errors import RequestError

MAX_DEPTH = 128  # arrays and objects of a body inside each other
MAX_MESSAGES = 8192  # of one conversation
MAX_PARTS = 1024  # of one message's content
MAX_CALLS = 512  # of tools, in one message
MAX_TOOLS = 512  # of one request
MAX_SCHEMA_BYTES = 2**18  # as JSON: of one tool's parameters, of the answer's schema, of a template's arguments


def require_shallow(body: bytes, value: Any) -> None:
    """Raises ``RequestError`` when ``value``, decoded from ``body``, nests deeper than ``MAX_DEPTH``.

    What recurses into a request, such as a template's ``tojson`` or a compiler of schemas, then has an end.
    """
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return  # most bodies, without a look at what is in them
    level = [value] if type(value) in (dict, list) else []
    for _ in range(MAX_DEPTH):
        level = [
            item
            for outer in level
            for item in (outer.values() if type(outer) is dict else outer)
            if type(item) in (dict, list)
        ]
        if not level:
            return
    raise RequestError(f"the body nests arrays and objects more than {MAX_DEPTH} deep", code="invalid_json")


def require_small(value: Any, param: str) -> None:
    """Raises ``RequestError`` naming ``param`` when ``value`` takes more than ``MAX_SCHEMA_BYTES`` as JSON."""
    if (size := len(msgspec.json.encode(value))) > MAX_SCHEMA_BYTES:
        raise RequestError(f"{param} takes {size:,} bytes as JSON, the limit is {MAX_SCHEMA_BYTES:,}", param=param)
