"""SQLite as the server uses it: one connection, one transaction at a time, a file that its owner alone may read."""

import sqlite3
import threading
from pathlib import Path
from types import TracebackType

from trimaran.base.errors import ConfigError

BUSY_SECONDS = 5.0


class Database:
    """``with database as db`` is a transaction: all of it is kept, or after an exception nothing. Safe to use from
    several threads. What has been committed survives the process's death, not that of the machine."""

    def __init__(self, file: Path | None, tables: str, what: str) -> None:
        """``file`` is made if it is not there; ``None``: in memory. ``tables`` is SQL that makes what is missing.

        Raises ``ConfigError``, which calls the file ``what``.
        """
        self._lock = threading.Lock()
        try:
            if file is not None:
                file.touch(0o600, exist_ok=True)
            self._db = sqlite3.connect(
                file or ":memory:", isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(tables)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{what} {file} cannot be used: {error}") from error

    def __enter__(self) -> sqlite3.Connection:
        self._lock.acquire()
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._lock.release()
            raise
        return self._db

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._db.execute("COMMIT")
        finally:
            try:
                if self._db.in_transaction:  # also where the disk was too full to commit
                    self._db.execute("ROLLBACK")
            finally:
                self._lock.release()

    def close(self) -> None:
        self._db.close()
