"""Downloads files: by several connections, resumes, tries again, and names a file only when its hash is right."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from trimaran.checkpoint.environment import CONNECTIONS
from trimaran.checkpoint.fetch import Fetch, Remote
from trimaran.checkpoint.file_record import FileRecord
from trimaran.checkpoint.pieces import Piece
from trimaran.checkpoint.progress import several

__all__ = ["Remote", "download", "download_all"]

_GRACE = 2.0  # seconds for threads to see that a download was broken off; whoever still waits for a server ends alone


def download(client: httpx.Client, remote: Remote, target: Path, connections: int = CONNECTIONS) -> FileRecord:
    """Fetches ``remote`` into ``target`` and returns its record.

    Large files come by up to ``connections`` connections, each of which asks for a range; SHA-256 is taken meanwhile.
    Ranges are put together only where an ETag, a date or a known hash shows that they are of one file. A server that
    ignores ranges is read by one connection, one whose file has changed from the start.

    An interrupted download leaves ``<target>.part``, and the next call goes on from there if the server can. Raises
    ``SourceError``: on a wrong hash or size (nothing is left behind then), when the disk is too small, or when failures
    outlast ``Patience``.
    """
    return download_all(client, [(remote, target)], connections)[0]


def download_all(
    client: httpx.Client, files: Sequence[tuple[Remote, Path]], connections: int = CONNECTIONS
) -> list[FileRecord]:
    """Fetches several files at once, by ``connections`` in all, in order; as ``download`` does each."""
    with several("Download") as begin:
        crew = _Crew(connections)
        fetches = [Fetch(client, remote, target, begin, crew.news) for remote, target in files]
        return crew.run(fetches)


class _Crew:
    """Threads, one for each piece under way. They are daemons: Ctrl-C need not wait for a server that is silent."""

    def __init__(self, connections: int) -> None:
        self.news = threading.Condition(threading.RLock())
        self._connections = connections
        self._running: set[threading.Thread] = set()
        self._error: BaseException | None = None

    def run(self, fetches: Sequence[Fetch]) -> list[FileRecord]:
        try:
            with self.news:
                while self._error is None and not all(fetch.record for fetch in fetches):
                    self._start_threads(fetches)
                    self.news.wait()
        finally:
            for fetch in fetches:
                fetch.close()
            until = time.monotonic() + _GRACE
            for thread in list(self._running):
                thread.join(max(0.0, until - time.monotonic()))
        if self._error is not None:
            raise self._error
        return [fetch.record for fetch in fetches if fetch.record]

    def _start_threads(self, fetches: Sequence[Fetch]) -> None:
        for fetch in fetches:
            while len(self._running) < self._connections and (piece := fetch.take()):
                thread = threading.Thread(target=self._work, args=(fetch, piece), daemon=True)
                self._running.add(thread)
                thread.start()

    def _work(self, fetch: Fetch, piece: Piece) -> None:
        try:
            fetch.bring(piece)
        except BaseException as error:  # the caller's thread raises it
            self._error = self._error or error
        finally:
            with self.news:
                self._running.discard(threading.current_thread())
                self.news.notify_all()
