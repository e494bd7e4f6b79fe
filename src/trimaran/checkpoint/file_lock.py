"""A lock between processes, held on a file."""

import fcntl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimaran.base.errors import SourceError

_POLL_SECONDS = 0.1


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Holds ``path`` exclusively if nobody else does; yields whether it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True  # closing the file frees the lock


@contextmanager
def file_lock(path: Path, *, deadline: float, what: str) -> Iterator[None]:
    """Holds ``path`` exclusively; raises ``SourceError`` when another process still has it after ``deadline`` seconds.

    The system frees the lock when its holder dies. The empty file stays: removing it would let two holders in.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        end = time.monotonic() + deadline
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise SourceError(f"another process has held {path} for {deadline:.0f} s, {what}") from None
            if not told:
                print(f"Waiting for another process, which is {what}", file=sys.stderr)
                told = True
            time.sleep(_POLL_SECONDS)
        yield  # closing the file frees the lock
