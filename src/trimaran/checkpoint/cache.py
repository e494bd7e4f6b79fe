"""The directory of downloaded models, and of data sets.

::

    $TRIMARAN_HOME/
      models/<key>/            a complete model: its files, trimaran.json (the record), trimaran.manifest.json
      data/<key>/              the same for a data set
      partial/<key>…/          a download under way or interrupted, to be resumed
      locks/<key>.lock         held by the process that fills <key>

``<key>`` is the readable part of the source and a hash of the whole of it. A model appears under ``models`` by one
rename, when everything has been verified: what is there is complete.
"""

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from trimaran.checkpoint.environment import home
from trimaran.checkpoint.file_lock import file_lock
from trimaran.checkpoint.file_record import RECORD, FileRecord
from trimaran.checkpoint.manifest import make_manifest, write_manifest

Shelf = Literal["models", "data"]
LOCK_SECONDS = 3600.0  # how long to wait for another process that pulls the same model


class Record(msgspec.Struct, frozen=True):
    """What is known about a downloaded model. ``main`` is the file to open, or None for the whole directory."""

    source: str
    revision: str | None  # the commit that a hub's branch or tag stood for
    main: str | None
    files: list[FileRecord]
    date: str  # ISO 8601, UTC

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class CachedModel:
    """A complete model in the cache."""

    directory: Path
    record: Record

    @property
    def path(self) -> Path:
        """What to open: a file, or a directory."""
        return self.directory / self.record.main if self.record.main else self.directory


def find(source: str, shelf: Shelf = "models") -> CachedModel | None:
    """The model from ``source`` if the cache has it whole: every file of its record is there, with the right size."""
    found = _read(home() / shelf / _key(source))
    return found if found and found.record.source == source else None


def list_models() -> list[CachedModel]:
    """Every complete model in the cache, by source."""
    root = home() / "models"
    found = (_read(directory) for directory in root.iterdir()) if root.is_dir() else ()
    return sorted((model for model in found if model is not None), key=lambda model: model.record.source)


@contextmanager
def exclusive(source: str) -> Iterator[None]:
    """Keeps other processes from filling ``source``; look again with ``find`` once inside."""
    lock = home() / "locks" / f"{_key(source)}.lock"
    with file_lock(lock, deadline=LOCK_SECONDS, what=f"pulling {source}"):
        yield


def staging(source: str, revision: str | None = None) -> Path:
    """A directory to download into. It survives an interruption; files of two revisions never share one."""
    suffix = f"@{hashlib.sha256(revision.encode()).hexdigest()[:12]}" if revision else ""
    directory = home() / "partial" / (_key(source) + suffix)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def publish(
    directory: Path,
    source: str,
    files: list[FileRecord],
    *,
    main: str | None,
    revision: str | None = None,
    shelf: Shelf = "models",
) -> CachedModel:
    """Moves the files of a staging directory into place by one rename, with their record.

    The caller holds ``exclusive``. Whatever else an earlier attempt has left in the directory is removed.
    """
    wanted = {file.name for file in files}
    for stray in directory.iterdir():
        if stray.name not in wanted:
            stray.unlink()
    date = datetime.now(UTC).isoformat(timespec="seconds")
    record = Record(source, revision, main, files, date)
    (directory / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    write_manifest(directory, make_manifest(files))
    target = home() / shelf / _key(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():  # incomplete or damaged, or the caller would have taken it
        doomed = directory.with_name(f"{directory.name}.old")
        shutil.rmtree(doomed, ignore_errors=True)
        target.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    directory.rename(target)
    return CachedModel(target, record)


def _read(directory: Path) -> CachedModel | None:
    try:
        record = msgspec.json.decode((directory / RECORD).read_bytes(), type=Record)
        whole = all((directory / file.name).stat().st_size == file.size for file in record.files)
    except (OSError, msgspec.DecodeError):
        return None
    return CachedModel(directory, record) if whole else None


def _key(source: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._=-]+", "-", source.partition("#")[0]).strip("-.")[:80]
    return f"{readable}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"
