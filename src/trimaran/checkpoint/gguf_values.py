"""Decodes GGUF's values from a mapped file, with every length checked before use."""

import struct
import sys
from array import array
from typing import Any

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.mapping import OpenFile

MAX_NAME = (1 << 16) - 1  # the format's limit for keys
_AHEAD = 1 << 20  # bytes that are waited for beyond those that are needed
MAX_DEPTH = 4  # arrays within arrays
MAX_ITEMS = 1 << 24  # of one array; the largest vocabularies have about 2^18 tokens and twice as many merges

BOOL, STRING, ARRAY = 7, 8, 9
SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    BOOL: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = SCALARS[4], SCALARS[10]
_MIN_BYTES = {STRING: 8, ARRAY: 12} | {kind: layout.size for kind, layout in SCALARS.items()}


class Cursor:
    """A position in a GGUF file. Methods read at ``pos``, move past what they read, and raise ``CheckpointError``.

    ``what`` names the thing being read, for the error.
    """

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._buffer = file.buffer_to(0)
        self._ready = 0  # bytes that have been waited for
        self.pos = 0

    def error(self, text: str) -> CheckpointError:
        """An error that says where in the file it was found."""
        return CheckpointError(f"{self._file.path}, near byte {self.pos}: {text}")

    def u32(self, what: str) -> int:
        return int(self._scalar(_U32, what))

    def u64(self, what: str) -> int:
        return int(self._scalar(_U64, what))

    def count(self, what: str, limit: int) -> int:
        """A number of things to come, at most ``limit``."""
        number = self.u64(what)
        if number > limit:
            raise self.error(f"{what} is {number}, more than the {limit} that are sensible")
        return number

    def name(self, what: str) -> str:
        """The name of a key or a tensor, which has at most ``MAX_NAME`` characters."""
        name = self._string(what)
        if len(name) > MAX_NAME:
            raise self.error(f"{what} has {len(name)} characters, more than {MAX_NAME}")
        return name

    def value(self, what: str) -> Any:
        """A typed value as a plain Python ``int``, ``float``, ``bool``, ``str`` or list of such."""
        return self._typed(self.u32(f"type of {what}"), what, 0)

    def _typed(self, kind: int, what: str, depth: int) -> Any:
        if kind == STRING:
            return self._string(what)
        if kind == ARRAY:
            return self._array(what, depth + 1)
        if kind not in SCALARS:
            raise self.error(f"{what} has the unknown value type {kind}")
        value = self._scalar(SCALARS[kind], what)
        return self._bools([value], what)[0] if kind == BOOL else value

    def _array(self, what: str, depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            raise self.error(f"{what} nests arrays more than {MAX_DEPTH} deep")
        kind = self.u32(f"item type of {what}")
        if kind not in _MIN_BYTES:
            raise self.error(f"{what} is an array of the unknown value type {kind}")
        count = self.count(f"length of {what}", MAX_ITEMS)
        self._need(count * _MIN_BYTES[kind], what)
        if kind == STRING:
            return self._strings(count, what)
        if kind == ARRAY:
            return [self._array(what, depth + 1) for _ in range(count)]
        layout = SCALARS[kind]
        numbers = array(layout.format[1:])  # the sizes of these types are the same everywhere that we run
        assert numbers.itemsize == layout.size, layout.format
        numbers.frombytes(self._buffer[self.pos : self.pos + count * layout.size])
        if sys.byteorder == "big":
            numbers.byteswap()
        items = numbers.tolist()
        self.pos += count * layout.size
        return self._bools(items, what) if kind == BOOL else items

    def _string(self, what: str) -> str:
        return self._strings(1, what)[0]

    def _strings(self, count: int, what: str) -> list[str]:
        """The hot path: a vocabulary has 10^5 strings, so this loop has no calls of ours in it."""
        buffer, size, length_at = self._buffer, self._file.size, _U64.unpack_from
        strings: list[str] = []
        start = self.pos
        try:
            for _ in range(count):
                if start + 8 > self._ready:
                    self._wait(start + 8)
                end = start + 8 + length_at(buffer, start)[0]
                if end > self._ready:
                    if end > size:
                        raise self._cut_short(f"{what}, in a string of {end - start - 8} bytes")
                    self._wait(end)
                strings.append(buffer[start + 8 : end].decode())
                start = end
        except struct.error:
            self.pos = start
            raise self._cut_short(what) from None
        except UnicodeDecodeError as error:
            self.pos = start
            raise self.error(f"{what}: a string is not UTF-8 ({error.reason})") from None
        self.pos = start
        return strings

    def _bools(self, items: list[Any], what: str) -> list[bool]:
        if any(item > 1 for item in items):
            raise self.error(f"{what} holds a boolean that is neither 0 nor 1")
        return [item == 1 for item in items]

    def _scalar(self, layout: struct.Struct, what: str) -> Any:
        self._need(layout.size, what)
        (value,) = layout.unpack_from(self._buffer, self.pos)
        self.pos += layout.size
        return value

    def _need(self, size: int, what: str) -> None:
        if self.pos + size > self._file.size:
            raise self._cut_short(what)
        self._wait(self.pos + size)

    def _wait(self, end: int) -> None:
        """Until what lies before ``end``, and some more, has been read."""
        if end > self._ready:
            self._ready = min(end + _AHEAD, self._file.size)
            self._file.buffer_to(self._ready)

    def _cut_short(self, what: str) -> CheckpointError:
        return self.error(f"the file ends within {what}: it is cut short ({self._file.size} bytes)")
