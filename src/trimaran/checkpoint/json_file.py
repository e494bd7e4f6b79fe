"""Reads JSON objects from files that are not trusted."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimaran.base.errors import CheckpointError

MAX_BYTES = 100_000_000
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


Read = Callable[[Path], bytes]  # a small file, whole; raises ``OSError``, or that it is not the right one


def read_object(path: Path, read: Read = Path.read_bytes) -> tuple[dict[str, Any], bytes]:
    """The JSON object in a file and the SHA-256 of its bytes; raises ``CheckpointError`` that names the file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path} has more than {MAX_BYTES} bytes")
        data = read(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    return parse_object(data, str(path)), hashlib.sha256(data).digest()


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Parses an object; ``what`` begins the error. A key that occurs twice is an error: JSON would keep the last."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique)
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()  # half a pair is no text, and later could not be written
    except RecursionError:
        raise CheckpointError(f"{what} is nested too deeply") from None
    except ValueError as error:  # not Unicode, not JSON, an absurd number, or a key that occurs twice
        raise CheckpointError(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"{key!r} occurs twice")
        result[key] = value
    return result
