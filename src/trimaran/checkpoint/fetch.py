"""One file under way: exchanges with its server, whose answers go into the partial file."""

import hashlib
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from trimaran.base.errors import SourceError
from trimaran.checkpoint.answer import ranged_total, validator_of, whole_total
from trimaran.checkpoint.disk_space import DISK_RESERVE, demand_space
from trimaran.checkpoint.file_record import FileRecord
from trimaran.checkpoint.http_client import check_status, shown, translated_errors
from trimaran.checkpoint.partial_file import PartialFile
from trimaran.checkpoint.patience import ATTEMPTS, GaveUpError, Patience, TransientError
from trimaran.checkpoint.pieces import Piece, Pieces
from trimaran.checkpoint.progress import Begin, Line

WORTHWHILE = 1 << 20  # bytes that must be new for earlier failures to be forgotten
STALL_SECONDS = 60.0
STALL_BYTES = 1 << 14  # a connection that brings fewer in STALL_SECONDS is as good as dead


@dataclass(frozen=True)
class Remote:
    """A file to fetch, and what is known about it beforehand. ``headers`` may hold a login: no other host sees it."""

    url: str
    sha256: str | None = None
    size: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Fetch:
    """Downloads one file, as ``download`` says, with as many connections as take a ``Piece`` each and ``bring`` it."""

    def __init__(
        self, client: httpx.Client, remote: Remote, target: Path, begin: Begin, news: threading.Condition
    ) -> None:
        """``begin`` opens a line of progress; ``news`` is the lock of what threads share, told when there is more."""
        self.record: FileRecord | None = None  # of the complete file
        self._client, self._remote, self._target = client, remote, target
        self._begin, self._news = begin, news
        self._pieces = Pieces(remote.size)
        self._part: PartialFile | None = None
        self._line: Line | None = None
        self._closed = False
        self._changes = 0
        self._old = False  # whether there are bytes of an earlier attempt
        self._again = False  # in the second round, after a wrong hash

    def take(self) -> Piece | None:
        """A piece that nobody brings yet, if there is one; the caller holds the lock, and brings it."""
        return None if self.record else self._pieces.take(self._part.version if self._part else 0)

    def bring(self, piece: Piece) -> None:
        """Brings a piece, and ends the download when it was the last; raises ``SourceError``."""
        try:
            if piece.lead:
                self._prepare(piece)
            if not (self.record or self._closed or self._complete()):
                self._try(piece)
        finally:
            with self._news:
                self._pieces.left()
                last = not self._pieces.workers and not self.record and not self._closed and self._complete()
        if last:
            self._conclude()

    def close(self) -> None:
        """Keeps what has come for another day, and ends whoever still brings some. Idempotent."""
        with self._news:
            self._closed = True
            part = self._part
        if part is not None:
            part.close()

    @property
    def _partial(self) -> PartialFile:
        assert self._part is not None, "the lead has opened it"
        return self._part

    @property
    def _known_bytes(self) -> bool:
        """Whether anything would tell bytes of this version from those of another."""
        return bool(self._partial.validator or self._remote.sha256)

    def _complete(self) -> bool:
        total, part = self._pieces.total, self._part
        if part is None or not part.size:
            return self._pieces.known and total == 0  # an empty file is asked for too
        return total is not None and not part.gaps(total)

    def _prepare(self, lead: Piece) -> None:
        """Takes up what earlier attempts have left."""
        if self._part is None:
            self.record = _already_there(self._remote, self._target)
            if self.record:
                return
            part = PartialFile(self._target, self._remote.url, durable=self._remote.sha256 is None)
            with self._news:
                self._part = part
                closed = self._closed
            if closed:
                part.close()
                return
            self._pieces.total = self._remote.size or part.total
            self._old = part.size > 0
            self._line = self._begin(self._target.name)
        part, total = self._partial, self._pieces.total
        gaps = part.gaps(total) if total is not None else []
        lead.start, lead.version = gaps[0][0] if gaps else part.size, part.version

    def _try(self, piece: Piece) -> None:
        patience = Patience(f"cannot download {shown(self._remote.url)}")
        best = piece.start
        while True:
            try:
                with translated_errors(self._remote.url):
                    self._exchange(piece)
                return
            except TransientError as error:
                if piece.version != self._partial.version:  # somebody else has begun anew
                    return
                if piece.start >= best + WORTHWHILE:
                    best = piece.start
                    patience.progressed()
                try:
                    patience.failed(error)
                except GaveUpError:  # perhaps there are more connections than the server likes
                    with self._news:
                        if not self._pieces.leave(piece, self._pieces.workers - 1, self._partial.version):
                            raise
                    return

    def _exchange(self, piece: Piece) -> None:
        """One request and its answer; returns when the piece is there, or somebody else's business."""
        part = self._partial
        if piece.start and not self._known_bytes:
            self._begin_anew(piece)
        headers = {"Accept-Encoding": "identity", **self._remote.headers}
        if piece.start:
            last = "" if piece.lead or piece.end is None else piece.end - 1
            headers["Range"] = f"bytes={piece.start}-{last}"
            if part.validator:
                headers["If-Range"] = part.validator
        with self._client.stream("GET", self._remote.url, headers=headers) as response:
            if response.status_code == 416:  # the file has become shorter
                self._begin_anew(piece)
                raise TransientError(f"it has no bytes from {headers.get('Range')} on")
            check_status(response)
            if response.status_code == 206:
                total = self._check_range(response, piece)
            else:
                total = whole_total(response)
                if not self._accept_whole(response, piece):
                    return
            if self._remote.size is not None and total not in (None, self._remote.size):
                part.discard()
                raise SourceError(
                    f"{shown(self._remote.url)} has {total} bytes, expected {self._remote.size}: it has been replaced"
                )
            if not self._pieces.known:
                self._learn(piece, validator_of(response), self._remote.size if total is None else total)
            self._receive(response, piece)

    def _check_range(self, response: httpx.Response, piece: Piece) -> int | None:
        """The bytes of the whole file, if a 206 says so; begins anew where it does not go with what is there."""
        part, validator = self._partial, validator_of(response)
        fits, total = ranged_total(response, piece.start)
        other = None not in (validator, part.validator) and validator != part.validator
        if fits and not other and (not self._pieces.known or total in (None, self._pieces.total)):
            return total
        self._begin_anew(piece)
        stated = response.headers.get("Content-Range", "")
        raise TransientError("it has changed" if fits else f"asked for bytes from {piece.start} on, got {stated!r}")

    def _accept_whole(self, response: httpx.Response, piece: Piece) -> bool:
        """Whether to read on where the answer is the whole file, asked for or not."""
        part = self._partial
        changed = part.validator is not None and validator_of(response) != part.validator
        with self._news:
            if piece.version != part.version:
                return False
            if changed:
                self._changes += 1
                if self._changes > ATTEMPTS:
                    raise SourceError(f"{shown(self._remote.url)} changes faster than it can be downloaded")
            elif not piece.start:
                return True
            elif self._pieces.leave(piece, 1, part.version):  # it knows no ranges: who reads it from the start goes on
                return False
            if part.size:
                self._begin_anew(piece)
            return True

    def _learn(self, lead: Piece, validator: str | None, total: int | None) -> None:
        part = self._partial
        part.describe(validator, total)
        if total is not None:
            demand_space(part.directory, total - part.size)
        with self._news:
            gaps = [] if total is None else part.gaps(total)
            if self._pieces.share(lead, total, gaps, together=self._known_bytes):
                part.scatter()
                self._news.notify_all()

    def _receive(self, response: httpx.Response, piece: Piece) -> None:
        window_end, window_bytes = time.monotonic() + STALL_SECONDS, 0
        self._report()
        checked = piece.start
        for chunk in response.iter_raw():
            if not self._store(chunk, piece):
                return
            self._report()
            if piece.end is None and piece.start - checked > DISK_RESERVE // 2:  # endless files must not fill it
                demand_space(self._partial.directory, 0)
                checked = piece.start
            window_bytes += len(chunk)
            if time.monotonic() > window_end:
                if window_bytes < STALL_BYTES:
                    raise TransientError(f"only {window_bytes} bytes came in {STALL_SECONDS:.0f} s")
                window_end, window_bytes = time.monotonic() + STALL_SECONDS, 0
        if piece.end is None:
            self._pieces.total = piece.start
        elif piece.start < piece.end:
            raise TransientError(f"the connection ended after {piece.start} of {piece.end} bytes")

    def _store(self, chunk: bytes, piece: Piece) -> bool:
        """False when the rest of the answer is of no use."""
        rest = memoryview(chunk)
        while rest:
            room = len(rest) if piece.end is None else piece.end - piece.start
            if not self._partial.write(piece.start, rest[:room], piece.version):
                return False
            piece.start += len(rest[:room])
            rest = rest[room:]
            if piece.start != piece.end:
                continue
            with self._news:
                if self._pieces.extend(piece):
                    continue
            if piece.end != self._pieces.total:
                return not piece.lead and not rest  # who asked for no more reads the end, and the connection is kept
            if rest:
                self._partial.discard()
                raise SourceError(f"{shown(self._remote.url)} sends more than its {piece.end} bytes")
        return True

    def _report(self) -> None:
        if self._line is not None:
            self._line(self._partial.size, self._pieces.total)

    def _begin_anew(self, piece: Piece) -> None:
        """Throws away all bytes, as some are not of the file as it is now; ``piece`` is the lead from here on."""
        with self._news:
            self._partial.restart()
            self._old = False
            self._pieces.begin_anew(self._remote.size)
            piece.start, piece.end, piece.version, piece.lead = 0, None, self._partial.version, True

    def _conclude(self) -> None:
        """Holds the hash against the expected one, and gives the file its name."""
        part, remote = self._partial, self._remote
        sha256, size = part.sha256, part.size
        if remote.sha256 in (None, sha256):
            part.finish()
            if self._line is not None:
                self._line.finish()
            self.record = FileRecord(self._target.name, sha256, size)
        elif (self._old or part.scattered) and not self._again:  # some may be of another version: once more, in order
            with self._news:
                part.restart()
                self._again, self._old = True, False
                self._pieces.begin_anew(remote.size, alone=True)
        else:
            part.discard()
            raise SourceError(
                f"{shown(remote.url)} has SHA-256 {sha256}, expected {remote.sha256}: "
                "it was changed or damaged on the way, and has been removed"
            )


def _already_there(remote: Remote, target: Path) -> FileRecord | None:
    """The file that an earlier pull of several finished before it was interrupted."""
    with suppress(FileNotFoundError), target.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = target.stat().st_size
        if remote.sha256 in (None, sha256) and remote.size in (None, size):
            return FileRecord(target.name, sha256, size)
    return None
