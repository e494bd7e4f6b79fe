"""Which bytes of a file are there: disjoint half-open spans, in order."""

from bisect import bisect_left
from collections.abc import Iterable

Span = tuple[int, int]  # first byte, and the one after the last


class Spans:
    """A set of bytes as few spans as possible."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = []
        for start, end in spans:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Adds bytes ``start`` to ``end``, some of which may be there already."""
        if start >= end:
            return
        first = bisect_left(self._spans, start, key=lambda span: span[1])  # spans that only touch are joined too
        last = first
        while last < len(self._spans) and self._spans[last][0] <= end:
            start, end = min(start, self._spans[last][0]), max(end, self._spans[last][1])
            last += 1
        self._spans[first:last] = [(start, end)]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(end - start for start, end in self._spans)

    @property
    def prefix(self) -> int:
        """How far the bytes go without a gap from the first byte on."""
        return self._spans[0][1] if self._spans and self._spans[0][0] == 0 else 0

    def gaps(self, total: int) -> list[Span]:
        """What is missing of ``total`` bytes, in order."""
        found, at = [], 0
        for start, end in self._spans:
            if at < min(start, total):
                found.append((at, min(start, total)))
            at = end
        return [*found, (at, total)] if at < total else found

    def within(self, total: int) -> "Spans":
        """Those of the first ``total`` bytes."""
        return Spans((start, min(end, total)) for start, end in self._spans)

    def as_list(self) -> list[Span]:
        return list(self._spans)
