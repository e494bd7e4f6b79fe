"""Shows the progress of a download, or of other work on bytes, on stderr.

A bar on a terminal, otherwise one line at the start and one at the end.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


@contextmanager
def progress(what: str, verb: str = "Download") -> Iterator[Report]:
    """Yields a function to call with the state of the work, as often as there is news."""
    with _bar(what) if sys.stderr.isatty() else _lines(what, verb) as report:
        yield report


@contextmanager
def _bar(what: str) -> Iterator[Report]:
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
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def _lines(what: str, verb: str) -> Iterator[Report]:
    start = time.monotonic()
    received, first = 0, None

    def report(done: int, total: int | None) -> None:
        nonlocal received, first
        if first is None:
            first = done
            size = f" ({megabytes(total)})" if total else ""
            resumed = f", going on from {megabytes(done)}" if done else ""
            print(f"{verb}ing {what}{size}{resumed}", file=sys.stderr, flush=True)
        received = done

    yield report
    seconds = time.monotonic() - start
    print(f"{verb}ed {what}: {megabytes(received)} in {seconds:.1f} s", file=sys.stderr, flush=True)


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
