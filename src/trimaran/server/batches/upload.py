"""Takes a form with a file in it (RFC 7578), which goes to the disk as it comes: memory holds a part of it."""

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Receive

from trimaran.base.env import nearest
from trimaran.base.errors import RequestError
from trimaran.server.errors import BodyTimeoutError, BodyTooLargeError

FIELD_BYTES = 1024  # of a field that is no file
_FORM_BYTES = 16 * 1024  # that a form may take beside its file
_SLOWEST = 16 * 1024  # bytes a second, after the time that any body has
_BLOCK = 1 << 20  # bytes that are written at a time
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


@dataclass
class Form:
    """``fields`` and the name of the file, whose bytes lie where the caller said."""

    fields: dict[str, str] = field(default_factory=dict)
    name: str | None = None


def longest_form(file_bytes: int) -> int:
    """Bytes of a form whose file has ``file_bytes``, at most."""
    return file_bytes + _FORM_BYTES


class _Parts:
    """What the parser finds, by parts. ``pending`` is what has come of the file and been written nowhere yet."""

    def __init__(self, file_bytes: int) -> None:
        self.form = Form()
        self.pending = bytearray()
        self.ended = False
        self._left = file_bytes
        self._most = file_bytes
        self._headers: dict[bytes, bytes] = {}
        self._key, self._value = b"", b""
        self._field: str | None = None
        self._bytes = bytearray()

    def parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._all,
            },
            max_header_count=8,
            max_header_size=4096,
        )

    def _begin(self) -> None:
        self._headers = {}
        self._bytes.clear()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._key += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._key.lower()] = self._value
        self._key = self._value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode(errors="replace")
        if name not in (*_FIELDS, "file"):
            hint = nearest(name, (*_FIELDS, "file"))
            raise RequestError(f"{name!r:.80} is not a field of this API{hint}", param=name, code="unknown_parameter")
        if name in self.form.fields or (name == "file" and self.form.name is not None):
            raise RequestError(f"{name} is given twice", param=name)
        self._field = None if name == "file" else name
        if name == "file":
            self.form.name = options.get(b"filename", b"file").decode(errors="replace")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._left -= end - start
            if self._left < 0:
                raise BodyTooLargeError(f"the file exceeds the limit of {self._most:,} bytes (--max-file-bytes)")
            self.pending += data[start:end]
            return
        self._bytes += data[start:end]
        if len(self._bytes) > FIELD_BYTES:
            raise RequestError(f"{self._field} takes more than {FIELD_BYTES} bytes", param=self._field)

    def _end(self) -> None:
        if self._field is not None:
            self.form.fields[self._field] = self._bytes.decode(errors="replace")

    def _all(self) -> None:
        self.ended = True


async def receive_form(content_type: str, receive: Receive, path: Path, file_bytes: int, seconds: float) -> Form:
    """Reads a request's body, and writes the file in it, of at most ``file_bytes``, to ``path``, where nothing is yet.

    The body must begin to come within ``seconds``, and go on without being slow. Raises ``RequestError``,
    ``BodyTooLargeError``, ``BodyTimeoutError``, or ``OSError``; then the caller deletes what is at ``path``.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise RequestError("the body must be a form, sent with content-type multipart/form-data", code="invalid_form")
    parts = _Parts(file_bytes)
    with path.open("xb") as file:
        try:
            parser = parts.parser(boundary)
            await _read(receive, parser, parts, file, longest_form(file_bytes), seconds)
            parser.finalize()
        except FormParserError as error:
            raise RequestError(f"the form cannot be read: {error}", code="invalid_form") from None
        if not parts.ended:
            raise RequestError("the form has no end", code="invalid_form")
        if parts.form.name is None:
            raise RequestError("file is required", param="file", code="missing_required_parameter")
        await asyncio.to_thread(_write, file, bytes(parts.pending), True)
    return parts.form


async def _read(
    receive: Receive, parser: MultipartParser, parts: _Parts, file: BinaryIO, most: int, seconds: float
) -> None:
    begun = asyncio.get_running_loop().time()
    received = 0
    more = True
    while more:
        until = begun + seconds + received / _SLOWEST
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise BodyTimeoutError(f"{received:,} bytes have come, too slowly") from None
        if message["type"] == "http.disconnect":
            raise RequestError("the form has no end", code="invalid_form")
        data = message.get("body", b"")
        more = message.get("more_body", False)
        received += len(data)
        if received > most:
            raise BodyTooLargeError(f"the body exceeds the limit of {most:,} bytes (--max-file-bytes)")
        parser.write(data)
        if len(parts.pending) >= _BLOCK:
            block, parts.pending = bytes(parts.pending), bytearray()
            await asyncio.to_thread(_write, file, block, False)


def _write(file: BinaryIO, data: bytes, last: bool) -> None:
    file.write(data)
    if last:
        file.flush()
        os.fsync(file.fileno())
