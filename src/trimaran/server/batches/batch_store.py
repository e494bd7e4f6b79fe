"""Batches and the answers of their lines, in SQLite: what is written here is neither lost nor written twice."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from trimaran.base.errors import RequestError
from trimaran.server.batches.file_store import FileStore, NewFile
from trimaran.server.batches.shapes import (
    UNFINISHED,
    Batch,
    Cached,
    Counts,
    FileObject,
    Findings,
    Reasoned,
    Status,
    Usage,
)
from trimaran.server.database import Database
from trimaran.server.errors import FileNotKnownError
from trimaran.server.tenants import RateLimitError

MOST_UNFINISHED = 64  # batches of one tenant
RETRY_SECONDS = 60.0
_BLOCK = 64  # answers that are read at a time

BATCH_TABLES = """
CREATE TABLE IF NOT EXISTS batches (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, status TEXT NOT NULL,
  input_file TEXT NOT NULL, kept_seconds INTEGER NOT NULL, ended INTEGER, document BLOB NOT NULL,
  completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, input_tokens INTEGER NOT NULL DEFAULT 0,
  cached_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
  reasoning_tokens INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS batches_of ON batches (tenant);
CREATE TABLE IF NOT EXISTS answers (
  batch INTEGER NOT NULL, line INTEGER NOT NULL, completed INTEGER NOT NULL, answer BLOB NOT NULL,
  PRIMARY KEY (batch, line)
) WITHOUT ROWID;
"""
_SHOWN = "document, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens"


NOTHING = Usage()


@dataclass(frozen=True)
class Known:
    """A batch, whose it is, and for how many seconds its files will be kept."""

    number: int
    tenant: str
    kept_seconds: int
    batch: Batch


@dataclass(frozen=True)
class Answered:
    """The answer to line ``line``: what will stand in a file, and the tokens that it took."""

    line: int
    completed: bool
    answer: bytes  # one line of JSON
    usage: Usage = NOTHING


class BatchStore:
    """Safe to use from several threads. A tenant finds its own batches alone."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def add(self, batch: Batch, tenant: str, kept_seconds: int) -> Known:
        """Keeps a new batch.

        Raises ``FileNotKnownError``, ``RequestError`` when its file is none for batches, ``RateLimitError`` when the
        tenant has too many that have not ended.
        """
        with self._database as db:
            file = db.execute(
                "SELECT purpose FROM files WHERE id = ? AND tenant = ? AND expires >= ?",
                (batch.input_file_id, tenant, self._clock()),
            ).fetchone()
            if file is None:
                why = f"there is no file {batch.input_file_id!r:.80} to be found"
                raise FileNotKnownError(why, param="input_file_id")
            if file[0] != "batch":
                raise RequestError(
                    f"{batch.input_file_id} is what a batch has left, not an input", param="input_file_id"
                )
            (waiting,) = db.execute(
                f"SELECT COUNT(*) FROM batches WHERE tenant = ? AND status IN {UNFINISHED}",
                (tenant,),
            ).fetchone()
            if waiting >= MOST_UNFINISHED:
                raise RateLimitError(
                    f"{waiting} batches have not ended, as many as may be",
                    code="unfinished_batches",
                    retry_after=RETRY_SECONDS,
                )
            row = (batch.id, tenant, batch.status, batch.input_file_id, kept_seconds, msgspec.json.encode(batch))
            added = db.execute(
                "INSERT INTO batches (id, tenant, status, input_file, kept_seconds, document) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
            assert added.lastrowid is not None
            return Known(added.lastrowid, tenant, kept_seconds, batch)

    def get(self, batch_id: str, tenant: str) -> Batch | None:
        with self._database as db:
            row = db.execute(
                f"SELECT {_SHOWN} FROM batches WHERE id = ? AND tenant = ?",
                (batch_id, tenant),
            ).fetchone()
        return None if row is None else _shown(*row)

    def list(self, tenant: str, *, after: str | None, limit: int) -> tuple[list[Batch], bool]:
        """Up to ``limit`` batches behind ``after``, the newest first, and whether there are more.

        Raises ``RequestError``.
        """
        with self._database as db:
            mark = (2**62,)
            if after is not None:
                mark = db.execute("SELECT number FROM batches WHERE id = ? AND tenant = ?", (after, tenant)).fetchone()
                if mark is None:
                    raise RequestError(f"there is no batch {after!r:.80} to be found", param="after")
            rows = db.execute(
                f"SELECT {_SHOWN} FROM batches WHERE tenant = ? AND number < ? ORDER BY number DESC LIMIT ?",
                (tenant, *mark, limit + 1),
            ).fetchall()
        found = [_shown(*row) for row in rows]
        return found[:limit], len(found) > limit

    def unfinished(self) -> Sequence[Known]:
        """All that have not ended, the oldest first."""
        with self._database as db:
            rows = db.execute(
                f"SELECT number, tenant, kept_seconds, {_SHOWN} FROM batches WHERE status IN {UNFINISHED} "
                "ORDER BY number"
            ).fetchall()
        return [Known(number, tenant, seconds, _shown(*row)) for number, tenant, seconds, *row in rows]

    def move(self, known: Known, sources: Sequence[Status], target: Status, *, total: int | None = None) -> Status:
        """Takes a batch from one of ``sources`` to ``target``; in another state it stays. What it is in then.

        ``total``: how many lines it has.
        """
        with self._database as db:
            batch = self._batch(db, known.number)
            if batch.status not in sources:
                return batch.status
            batch = replace(batch, status=target, **{f"{target}_at": int(self._clock())})
            if total is not None:
                batch = replace(batch, request_counts=replace(batch.request_counts, total=total))
            row = (target, msgspec.json.encode(batch), known.number)
            db.execute("UPDATE batches SET status = ?, document = ? WHERE number = ?", row)
            return target

    def cancelling(self, batch_id: str, tenant: str) -> Known | None:
        """A batch that is being cancelled from now on; ``None`` where that cannot be, or has been before."""
        with self._database as db:
            row = db.execute(
                "SELECT number, kept_seconds FROM batches WHERE id = ? AND tenant = ? "
                "AND status IN ('validating', 'in_progress')",
                (batch_id, tenant),
            ).fetchone()
            if row is None:
                return None
            number, kept_seconds = row
            batch = replace(self._batch(db, number), status="cancelling", cancelling_at=int(self._clock()))
            db.execute(
                "UPDATE batches SET status = 'cancelling', document = ? WHERE number = ?",
                (msgspec.json.encode(batch), number),
            )
            return Known(number, tenant, kept_seconds, batch)

    def answered(self, known: Known, one: Answered) -> bool:
        """Keeps an answer; ``False``: the line had one already, which stays."""
        with self._database as db:
            row = (known.number, one.line, one.completed, one.answer)
            if not db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", row).rowcount:
                return False
            usage = one.usage
            more = (
                one.completed,
                not one.completed,
                usage.input_tokens,
                usage.input_tokens_details.cached_tokens,
                usage.output_tokens,
                usage.output_tokens_details.reasoning_tokens,
            )
            db.execute(
                "UPDATE batches SET completed = completed + ?, failed = failed + ?, input_tokens = input_tokens + ?, "
                "cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ?, "
                "reasoning_tokens = reasoning_tokens + ? WHERE number = ?",
                (*more, known.number),
            )
            return True

    def lines_answered(self, known: Known) -> set[int]:
        with self._database as db:
            return {line for (line,) in db.execute("SELECT line FROM answers WHERE batch = ?", (known.number,))}

    def answers(self, known: Known) -> Iterator[Answered]:
        """All answers by line, a few at a time: others get their turn in between."""
        last = 0
        while True:
            with self._database as db:
                rows = db.execute(
                    "SELECT line, completed, answer FROM answers WHERE batch = ? AND line > ? ORDER BY line LIMIT ?",
                    (known.number, last, _BLOCK),
                ).fetchall()
            for last, completed, answer in rows:
                yield Answered(last, bool(completed), answer)
            if len(rows) < _BLOCK:
                return

    def end(
        self,
        known: Known,
        target: Status,
        files: FileStore,
        *,
        output: NewFile | None,
        error: NewFile | None,
        unanswered: int = 0,
        findings: Findings | None = None,
    ) -> Batch:
        """The batch's last state, with its files; ``unanswered``: how many lines of the error file nobody answered."""
        kept: list[FileObject] = []
        now = int(self._clock())
        try:
            with self._database as db:
                batch = self._batch(db, known.number)
                output_id, error_id = (
                    None if new is None else files.keep_within(db, known.tenant, new, kept).id
                    for new in (output, error)
                )
                batch = replace(
                    batch, status=target, output_file_id=output_id, error_file_id=error_id, errors=findings,
                    **{f"{target}_at": now},
                )  # fmt: skip
                db.execute(
                    "UPDATE batches SET status = ?, document = ?, ended = ?, failed = failed + ? WHERE number = ?",
                    (target, msgspec.json.encode(batch), now, unanswered, known.number),
                )
                db.execute("DELETE FROM answers WHERE batch = ?", (known.number,))
                return self._batch(db, known.number)
        except BaseException:
            files.forget(kept)
            raise

    def forget_old(self, seconds: float) -> None:
        """Forgets batches that ended more than ``seconds`` ago."""
        with self._database as db:
            db.execute("DELETE FROM batches WHERE ended < ?", (self._clock() - seconds,))

    @staticmethod
    def _batch(db: sqlite3.Connection, number: int) -> Batch:
        return _shown(*db.execute(f"SELECT {_SHOWN} FROM batches WHERE number = ?", (number,)).fetchone())


def _shown(document: bytes, completed: int, failed: int, read: int, cached: int, written: int, reasoned: int) -> Batch:
    batch = msgspec.json.decode(document, type=Batch)
    return replace(
        batch,
        request_counts=Counts(batch.request_counts.total, completed, failed),
        usage=Usage(read, Cached(cached), written, Reasoned(reasoned), read + written),
    )
