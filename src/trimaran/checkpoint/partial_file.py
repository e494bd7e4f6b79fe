"""A file that is being downloaded: what has arrived, its running hash, and what is needed to go on later."""

import hashlib
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from trimaran.checkpoint.spans import Span, Spans

NOTE_SECONDS = 1.0  # of bytes that came out of order, a killed process loses at most as many
_PIECE = 1 << 20  # bytes that are hashed together
_SLICE = 8 << 20  # bytes that one write may have to hash: a connection waits for it


class _Note(msgspec.Struct, frozen=True):
    """Kept beside the bytes: where they come from, and the server's name for that version of them."""

    url: str
    validator: str | None = None  # a strong ETag or a Last-Modified, for If-Range
    total: int | None = None  # bytes of the whole file
    held: list[Span] | None = None  # the spans that have come; None: the file as far as it goes


class PartialFile:
    """``<target>.part`` and its note ``<target>.part.json``; opening it takes up what an earlier attempt has left.

    Bytes of another URL are thrown away. ``close`` keeps the bytes for another day, ``finish`` renames them to the
    target, ``discard`` leaves nothing behind. Several threads may write. Bytes are hashed as soon as all before them
    are there. ``durable``: the note never says more than the disk holds, for files whose hash nobody knows.
    """

    def __init__(self, target: Path, url: str, *, durable: bool = False) -> None:
        self._target = target
        self._path = target.with_name(f"{target.name}.part")
        self._note_path = target.with_name(f"{target.name}.part.json")
        self._durable = durable
        self._lock = threading.RLock()  # of everything but the hash
        self._hashing = threading.Lock()
        earlier = self._read_note()
        self._note = earlier if earlier and earlier.url == url else _Note(url)
        self._file = self._path.open("r+b" if earlier is self._note and self._path.exists() else "w+b", buffering=0)
        length = os.fstat(self._file.fileno()).st_size
        self._spans = Spans([(0, length)] if self._note.held is None else self._note.held).within(length)
        self._noted = time.monotonic()
        self.version = 0  # raised whenever earlier bytes cease to count
        self._sha = hashlib.sha256()
        self._hashed = 0

    @property
    def directory(self) -> Path:
        return self._target.parent

    @property
    def size(self) -> int:
        """Bytes so far."""
        with self._lock:
            return self._spans.size

    @property
    def sha256(self) -> str:
        """Hash (hex) of the bytes so far, up to the first that is missing."""
        with self._hashing:
            self._hash_on(None)
            return self._sha.hexdigest()

    @property
    def validator(self) -> str | None:
        """What the server called the version that the bytes belong to."""
        return self._note.validator

    @property
    def total(self) -> int | None:
        """Bytes of the whole file, if a server has said."""
        return self._note.total

    @property
    def scattered(self) -> bool:
        """Whether bytes come, or came, out of order."""
        return self._note.held is not None

    def gaps(self, total: int) -> list[Span]:
        """What is missing of ``total`` bytes, in order."""
        with self._lock:
            return self._spans.gaps(total)

    def describe(self, validator: str | None, total: int | None) -> None:
        """Notes what the server says about the file whose bytes follow."""
        with self._lock:
            self._note = msgspec.structs.replace(self._note, validator=validator, total=total)
            self._write_note()

    def scatter(self) -> None:
        """Has the note say which bytes are there: from now on they may come out of order."""
        with self._lock:
            self._note = msgspec.structs.replace(self._note, held=self._spans.as_list())
            self._write_note()

    def write(self, at: int, chunk: bytes | memoryview, version: int) -> bool:
        """Writes bytes of ``version``; False, and nothing done, when those do not count any more."""
        with self._lock:
            if version != self.version:
                return False
            view = memoryview(chunk)
            while view:
                done = os.pwrite(self._file.fileno(), view, at)
                self._spans.add(at, at + done)
                view, at = view[done:], at + done
            if self.scattered and time.monotonic() - self._noted > NOTE_SECONDS:
                self._write_note()
        if self._hashing.acquire(blocking=False):  # else another thread is at it
            try:
                self._hash_on(_SLICE)
            finally:
                self._hashing.release()
        return True

    def restart(self) -> None:
        """Throws away the bytes so far."""
        with self._hashing, self._lock:
            self.version += 1
            os.ftruncate(self._file.fileno(), 0)
            self._spans = Spans()
            self._note = msgspec.structs.replace(self._note, held=None)
            self._write_note()
            self._sha, self._hashed = hashlib.sha256(), 0

    def close(self) -> None:
        """Keeps the bytes where a later attempt finds them; nothing is written any more. Idempotent."""
        with self._hashing, self._lock:
            self.version += 1
            if not self._file.closed and self.scattered:
                self._write_note()
            self._file.close()

    def finish(self) -> None:
        """Renames the bytes to the target."""
        self.close()
        self._path.replace(self._target)
        self._note_path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Removes bytes and note."""
        self.close()
        self._path.unlink(missing_ok=True)
        self._note_path.unlink(missing_ok=True)

    def _hash_on(self, most: int | None) -> None:
        """Hashes up to ``most`` of the bytes that have none missing before them; the caller holds ``_hashing``."""
        with self._lock:
            end = self._spans.prefix
        if most is not None:
            end = min(end, self._hashed + most)
        while self._hashed < end:
            piece = os.pread(self._file.fileno(), min(_PIECE, end - self._hashed), self._hashed)
            if not piece:
                raise OSError(f"{self._path} was cut short by somebody else")
            self._sha.update(piece)
            self._hashed += len(piece)

    def _write_note(self) -> None:
        """Whole or not at all: a note that is damaged would cost all bytes."""
        if self.scattered:
            if self._durable:
                os.fsync(self._file.fileno())
            self._note = msgspec.structs.replace(self._note, held=self._spans.as_list())
        half = self._note_path.with_name(f"{self._note_path.name}.half")
        half.write_bytes(msgspec.json.encode(self._note))
        half.replace(self._note_path)
        self._noted = time.monotonic()

    def _read_note(self) -> _Note | None:
        with suppress(OSError, msgspec.DecodeError):
            note = msgspec.json.decode(self._note_path.read_bytes(), type=_Note)
            if all(0 <= start <= end for start, end in note.held or ()):
                return note
        return None
