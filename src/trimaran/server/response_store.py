"""Keeps responses of ``/v1/responses`` for as long as they may be asked for or continued, in SQLite.

In memory unless a file is named: what a client said is then gone with the server. A tenant finds its own alone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trimaran.server.database import Database

MOST_BYTES = 256 << 20  # of all that is kept; the oldest go first

_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL, expires REAL NOT NULL, size INTEGER NOT NULL,
  response BLOB NOT NULL, input BLOB NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class Stored:
    """JSON of a response, and of all items that it was an answer to."""

    response: bytes
    input: bytes


class ResponseStore:
    """Safe to use from several threads; each call takes well under a millisecond, or what the disk takes."""

    def __init__(self, file: Path | None, seconds: float, clock: Callable[[], float] = time.time) -> None:
        """``file`` is made if it is not there, readable by its owner alone. Raises ``ConfigError``."""
        self._seconds = seconds
        self._clock = clock
        self._database = Database(file, _TABLE, "--responses-file")

    def put(self, name: str, tenant: str, stored: Stored) -> None:
        """Keeps a response; one of the same name is replaced."""
        size = len(stored.response) + len(stored.input)
        row = (name, tenant, self._clock() + self._seconds, size, stored.response, stored.input)
        with self._database as db:
            db.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?)", row)
            db.execute("DELETE FROM responses WHERE expires < ?", (self._clock(),))
            (total,) = db.execute("SELECT COALESCE(SUM(size), 0) FROM responses").fetchone()
            while total > MOST_BYTES:
                oldest, size = db.execute("SELECT id, size FROM responses ORDER BY expires LIMIT 1").fetchone()
                db.execute("DELETE FROM responses WHERE id = ?", (oldest,))
                total -= size

    def get(self, name: str, tenant: str) -> Stored | None:
        with self._database as db:
            found = db.execute(
                "SELECT response, input FROM responses WHERE id = ? AND tenant = ? AND expires >= ?",
                (name, tenant, self._clock()),
            ).fetchone()
        return None if found is None else Stored(*found)

    def delete(self, name: str, tenant: str) -> bool:
        """Whether there was one."""
        with self._database as db:
            return db.execute("DELETE FROM responses WHERE id = ? AND tenant = ?", (name, tenant)).rowcount > 0

    def close(self) -> None:
        self._database.close()
