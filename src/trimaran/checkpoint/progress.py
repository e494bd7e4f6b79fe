"""Shows the progress of a download, or of other work on bytes, on stderr.

A bar on a terminal, otherwise one line at the start and one at the end.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Report = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


class Line(Protocol):
    """The progress of one thing; threads may take turns to call it."""

    def __call__(self, done: int, total: int | None) -> None:
        """Says how far the work is, as often as there is news."""
        ...

    def finish(self) -> None:
        """Says that it is done."""
        ...


Begin = Callable[[str], Line]  # what it is the progress of


@contextmanager
def progress(what: str, verb: str = "Download") -> Iterator[Report]:
    """Yields a function to call with the state of the work."""
    with several(verb) as begin:
        line = begin(what)
        yield line
        line.finish()


@contextmanager
def several(verb: str) -> Iterator[Begin]:
    """Yields a function that opens a line for one of several things that are done at once."""
    if not sys.stderr.isatty():
        yield lambda what: _Plain(what, verb)
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bars:
        yield lambda what: _Bar(bars, bars.add_task(what, total=None))


class _Bar:
    def __init__(self, bars: "Progress", task: "TaskID") -> None:
        self._bars, self._task = bars, task

    def __call__(self, done: int, total: int | None) -> None:
        self._bars.update(self._task, completed=done, total=total)

    def finish(self) -> None:
        """The bar says so."""


class _Plain:
    """A line at the start, when the size is known, and one at the end."""

    def __init__(self, what: str, verb: str) -> None:
        self._what, self._verb = what, verb
        self._start = time.monotonic()
        self._done, self._begun = 0, False

    def __call__(self, done: int, total: int | None) -> None:
        self._done = done
        if self._begun:
            return
        self._begun = True
        size = f" ({megabytes(total)})" if total else ""
        resumed = f", going on from {megabytes(done)}" if done else ""
        _say(f"{self._verb}ing {self._what}{size}{resumed}")

    def finish(self) -> None:
        seconds = time.monotonic() - self._start
        _say(f"{self._verb}ed {self._what}: {megabytes(self._done)} in {seconds:.1f} s")


def _say(line: str) -> None:
    """In one write, as other threads may say something too."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
