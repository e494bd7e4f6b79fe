"""Files of tenants: what is known of them in SQLite, their bytes beside it under names that no client chose."""

import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trimaran.base.errors import RequestError
from trimaran.server.batches.shapes import UNFINISHED, FileObject, Purpose
from trimaran.server.database import Database
from trimaran.server.tenants import RateLimitError

MOST_FILES = 10_000  # of one tenant
MOST_ARRIVING = 8  # uploads of one tenant at once
DISK_RESERVE = 256 << 20  # bytes of the file system that uploads leave free
NAME_LENGTH = 255  # characters of a file's name that are kept

FILE_TABLES = """
CREATE TABLE IF NOT EXISTS files (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, purpose TEXT NOT NULL,
  bytes INTEGER NOT NULL, expires INTEGER NOT NULL, document BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS files_of ON files (tenant);
"""


@dataclass(frozen=True)
class FileLimits:
    """Of one file and of one tenant's together, in bytes; and for how many seconds a file is kept."""

    file_bytes: int
    tenant_bytes: int
    seconds: int


@dataclass(frozen=True)
class NewFile:
    """A whole file that lies in ``arriving``."""

    path: Path
    name: str
    purpose: Purpose
    seconds: int  # for which it is kept


class QuotaError(RequestError):
    """The tenant's files take as much as they may."""

    code = "file_quota_exceeded"


class FileStore:
    """Safe to use from several threads. A tenant finds its own files alone, and none that has expired."""

    def __init__(
        self, database: Database, directory: Path, limits: FileLimits, clock: Callable[[], float] = time.time
    ) -> None:
        self.limits = limits
        self._database = database
        self._content, self._arriving = directory / "content", directory / "arriving"
        self._clock = clock
        self._expected: dict[str, list[int]] = {}  # bytes of each upload that a tenant has begun

    def begin(self, tenant: str, size: int) -> None:
        """Reserves room for an upload of at most ``size`` bytes until ``end``.

        Raises ``QuotaError``, ``RateLimitError`` when too many are under way, ``OSError`` when the disk is full.
        """
        with self._database as db:
            count, used = db.execute(
                "SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM files WHERE tenant = ?", (tenant,)
            ).fetchone()
            expected = self._expected.setdefault(tenant, [])
            if len(expected) >= MOST_ARRIVING:
                raise RateLimitError(
                    f"{MOST_ARRIVING} files are arriving, as many as may at once", code="concurrency", retry_after=1.0
                )
            if count + len(expected) >= MOST_FILES:
                raise QuotaError(f"there are {count:,} files, as many as may be; delete some", param="file")
            if used + sum(expected) + size > self.limits.tenant_bytes:
                raise QuotaError(
                    f"files take {used:,} bytes and may take {self.limits.tenant_bytes:,} (--max-files-bytes); "
                    "delete some",
                    param="file",
                )
            if size > shutil.disk_usage(self._content).free - DISK_RESERVE:
                raise OSError("the disk is full")
            expected.append(size)

    def end(self, tenant: str, size: int) -> None:
        """Gives back what ``begin`` reserved."""
        self._expected[tenant].remove(size)

    def arriving(self) -> Path:
        """Where the bytes of a new file go until they are all there."""
        return self._arriving / secrets.token_hex(16)

    def keep(self, tenant: str, new: NewFile) -> FileObject:
        """Takes a file that has arrived."""
        kept: list[FileObject] = []
        try:
            with self._database as db:
                return self.keep_within(db, tenant, new, kept)
        except BaseException:
            self.forget(kept)
            raise

    def keep_within(self, db: sqlite3.Connection, tenant: str, new: NewFile, kept: list[FileObject]) -> FileObject:
        """The same as a part of a transaction; should that fail, ``kept`` is what to ``forget``."""
        now = int(self._clock())
        file = FileObject(
            id=f"file-{secrets.token_hex(12)}",
            bytes=new.path.stat().st_size,
            created_at=now,
            expires_at=now + new.seconds,
            filename=new.name[:NAME_LENGTH],
            purpose=new.purpose,
        )
        row = (file.id, tenant, file.purpose, file.bytes, file.expires_at, msgspec.json.encode(file))
        db.execute("INSERT INTO files (id, tenant, purpose, bytes, expires, document) VALUES (?, ?, ?, ?, ?, ?)", row)
        kept.append(file)
        new.path.rename(self._content / file.id)
        return file

    def forget(self, kept: Sequence[FileObject]) -> None:
        """Deletes the bytes of files that are not known after all."""
        for file in kept:
            self._unlink(file.id)

    def get(self, file_id: str, tenant: str) -> FileObject | None:
        with self._database as db:
            found = db.execute(
                "SELECT document FROM files WHERE id = ? AND tenant = ? AND expires >= ?",
                (file_id, tenant, self._clock()),
            ).fetchone()
        return None if found is None else msgspec.json.decode(found[0], type=FileObject)

    def path(self, file_id: str) -> Path:
        """Of the bytes of a file that ``get`` has found."""
        return self._content / file_id

    def list(
        self, tenant: str, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> tuple[list[FileObject], bool]:
        """Up to ``limit`` files behind ``after``, and whether there are more. Raises ``RequestError``."""
        before, order = ("<", "DESC") if newest_first else (">", "ASC")
        with self._database as db:
            mark = (2**62 if newest_first else 0,)
            if after is not None:
                mark = db.execute("SELECT number FROM files WHERE id = ? AND tenant = ?", (after, tenant)).fetchone()
                if mark is None:
                    raise RequestError(f"there is no file {after!r:.80} to be found", param="after")
            rows = db.execute(
                f"SELECT document FROM files WHERE tenant = ? AND expires >= ? AND number {before} ? "
                f"AND (? IS NULL OR purpose = ?) ORDER BY number {order} LIMIT ?",
                (tenant, self._clock(), *mark, purpose, purpose, limit + 1),
            ).fetchall()
        found = [msgspec.json.decode(document, type=FileObject) for (document,) in rows]
        return found[:limit], len(found) > limit

    def delete(self, file_id: str, tenant: str) -> bool:
        """Whether there was one. Raises ``RequestError`` when a batch still reads it."""
        with self._database as db:
            reader = db.execute(
                f"SELECT id FROM batches WHERE input_file = ? AND tenant = ? AND status IN {UNFINISHED}",
                (file_id, tenant),
            ).fetchone()
            if reader is not None:
                raise RequestError(
                    f"{file_id} is the input of {reader[0]}, which has not ended; cancel that first",
                    param="file_id",
                    code="file_in_use",
                )
            if not db.execute("DELETE FROM files WHERE id = ? AND tenant = ?", (file_id, tenant)).rowcount:
                return False
        self._unlink(file_id)
        return True

    def forget_expired(self) -> None:
        """Deletes what has expired, but for inputs of batches that have not ended."""
        with self._database as db:
            rows = db.execute(
                "DELETE FROM files WHERE expires < ? AND id NOT IN "
                f"(SELECT input_file FROM batches WHERE status IN {UNFINISHED}) RETURNING id",
                (self._clock(),),
            ).fetchall()
        for (file_id,) in rows:
            self._unlink(file_id)

    def forget_strays(self) -> None:
        """Deletes bytes of files that are not known, which a server left that was killed."""
        with self._database as db:
            known = {file_id for (file_id,) in db.execute("SELECT id FROM files")}
        for path in self._arriving.iterdir():
            path.unlink()
        for path in self._content.iterdir():
            if path.name not in known:
                path.unlink()

    def _unlink(self, file_id: str) -> None:
        (self._content / file_id).unlink(missing_ok=True)
