"""What the headers of an answer say about a file (RFC 9110)."""

import re

import httpx

from trimaran.base.errors import SourceError
from trimaran.checkpoint.http_client import shown

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


def ranged_total(response: httpx.Response, start: int) -> tuple[bool, int | None]:
    """Whether a 206 begins with byte ``start``, and the bytes of the whole file if it says so."""
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != start:
        return False, None
    return True, None if found[3] == "*" else int(found[3])


def whole_total(response: httpx.Response) -> int | None:
    """Bytes of a file that comes whole; raises ``SourceError`` when it comes in another form."""
    if response.headers.get("Content-Encoding", "identity") != "identity":  # not what was asked for
        raise SourceError(f"{shown(response.request.url)} comes compressed, so its bytes are not the file's")
    length = response.headers.get("Content-Length", "")
    return int(length) if re.fullmatch(r"\d{1,18}", length) else None


def validator_of(response: httpx.Response) -> str | None:
    """What If-Range may hold: a strong ETag, or a date (13.1.5)."""
    etag = response.headers.get("ETag")
    if etag and not etag.startswith("W/"):
        return str(etag)
    date = response.headers.get("Last-Modified")
    return str(date) if date else None
