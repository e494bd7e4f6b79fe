"""A file that is being downloaded: what has arrived, its running hash, and what is needed to go on later."""

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec


class _Note(msgspec.Struct, frozen=True):
    """Kept beside the bytes: where they come from, and the server's name for that version of them."""

    url: str
    validator: str | None = None  # a strong ETag or a Last-Modified, for If-Range
    total: int | None = None  # bytes of the whole file


class PartialFile:
    """``<target>.part`` and its note ``<target>.part.json``; opening it takes up what an earlier attempt has left.

    Bytes of another URL are thrown away. ``close`` keeps the bytes for another day, ``finish`` renames them to the
    target, ``discard`` leaves nothing behind.
    """

    def __init__(self, target: Path, url: str) -> None:
        self._target = target
        self._path = target.with_name(f"{target.name}.part")
        self._note_path = target.with_name(f"{target.name}.part.json")
        earlier = self._read_note()
        self._note = earlier if earlier and earlier.url == url else _Note(url)
        self._file = self._path.open("r+b" if earlier is self._note and self._path.exists() else "w+b")
        self._sha = hashlib.sha256()
        self.size = 0  # bytes so far
        while chunk := self._file.read(1 << 20):
            self._sha.update(chunk)
            self.size += len(chunk)

    @property
    def directory(self) -> Path:
        return self._target.parent

    @property
    def sha256(self) -> str:
        """Hash (hex) of the bytes so far."""
        return self._sha.hexdigest()

    @property
    def validator(self) -> str | None:
        """What the server called the version that the bytes belong to."""
        return self._note.validator

    @property
    def total(self) -> int | None:
        """Bytes of the whole file, if a server has said."""
        return self._note.total

    def describe(self, validator: str | None, total: int | None) -> None:
        """Notes what the server says about the file whose bytes follow."""
        self._note = _Note(self._note.url, validator, total)
        self._note_path.write_bytes(msgspec.json.encode(self._note))

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._sha.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        """Throws away the bytes so far."""
        self._file.seek(0)
        self._file.truncate()
        self._sha = hashlib.sha256()
        self.size = 0

    def close(self) -> None:
        """Keeps the bytes where a later attempt finds them; idempotent."""
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

    def _read_note(self) -> _Note | None:
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._note_path.read_bytes(), type=_Note)
        return None
