"""What fuzzing found, and for how long it goes on."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Finding:
    """Something that must not be: a crash, a hang, an untyped error, a damage that was not noticed."""

    kind: str
    what: str
    seed: str  # draws the case again
    kept: Path | None = None  # where the first such case is kept, if it is

    def __str__(self) -> str:
        return f"{self.kind}: {self.what} (case {self.seed}{f', kept as {self.kept}' if self.kept else ''})"


@dataclass
class Tally:
    """What became of all cases: counts by kind and outcome, and each finding once."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    slowest: dict[str, tuple[float, str]] = field(default_factory=dict)  # seconds and case, by kind

    def took(self, kind: str, seconds: float, case: str) -> None:
        self.slowest[kind] = max((seconds, case), self.slowest.get(kind, (0.0, "")))

    def note(self, finding: Finding) -> bool:
        """Whether there was none like it; one that is new is shown at once."""
        new = self.findings.setdefault(f"{finding.kind} {finding.what[:80]}", finding) is finding
        if new:
            print(f"FOUND {finding}", flush=True)
        return new

    @property
    def cases(self) -> int:
        return self.counts.total()


def counted(first: int, more: Callable[[], bool]) -> Iterator[int]:
    """Numbers from ``first`` on, for as long as ``more()`` says so."""
    number = first
    while more():
        yield number
        number += 1


def until(seconds: float) -> Callable[[], bool]:
    """True for ``seconds`` from now on."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def times(count: int) -> Callable[[], bool]:
    """True ``count`` times."""
    left = iter(range(count))
    return lambda: next(left, None) is not None
