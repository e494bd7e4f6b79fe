"""Leases: pages that a transfer reads or writes, and that stay where they are until it is over.

A lease holds a reference on each of its pages. So a sequence may end, be cancelled or be preempted while its pages are
under way: they are free when the lease ends too (deferred release), a page half filled like any other. A lease ends by
word (``close``, once the other side has acknowledged) or, should that word never come, by time (``expire``).
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from trimaran.base.errors import PageIntegrityError, TransferError
from trimaran.engine.group import PageGroup
from trimaran.engine.pages import PageRef


@dataclass(frozen=True, slots=True)
class _Lease:
    pages: tuple[tuple[PageRef, ...], ...]  # of each cache group
    until: float  # seconds of the clock


class Leases:
    """All open leases on pages of ``groups``; changes only between two steps. ``expired`` counts those that ended by
    time."""

    def __init__(self, groups: Items[PageGroup], clock: Callable[[], float] = time.monotonic) -> None:
        self._groups = groups
        self._clock = clock
        self._open: dict[str, _Lease] = {}
        self.expired = 0

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, lease: object) -> bool:
        return lease in self._open

    def open(self, lease: str, pages: Items[Items[PageRef]], seconds: float) -> None:
        """Keeps ``pages``, some of each cache group, for at most ``seconds``; all of them or none.

        Raises ``TransferError`` when a lease of this name is open, ``PageIntegrityError`` when a reference is not good
        any more.
        """
        if lease in self._open:
            raise TransferError(f"a lease called {lease!r} is open already")
        for number, (group, refs) in enumerate(zip(self._groups, pages, strict=True)):
            for ref in refs:
                if not group.pool.held(ref):
                    raise PageIntegrityError(f"page {ref.page} of cache group {number} has changed hands")
        for group, refs in zip(self._groups, pages, strict=True):
            for ref in refs:
                group.pool.hold(ref)
        self._open[lease] = _Lease(tuple(map(tuple, pages)), self._clock() + seconds)

    def close(self, lease: str) -> bool:
        """Ends a lease; False when there is none of this name (any more), which does nothing."""
        found = self._open.pop(lease, None)
        if found is None:
            return False
        for group, refs in zip(self._groups, found.pages, strict=True):
            for ref in reversed(refs):  # as sequences do: the end of a prefix is evicted before its beginning
                group.let_go(ref)
        return True

    def expire(self, now: float) -> list[str]:
        """Ends the leases that are over at ``now`` and names them: what would be written into them is late."""
        over = [name for name, lease in self._open.items() if lease.until <= now]
        for name in over:
            self.close(name)
        self.expired += len(over)
        return over

    def pages_of(self, lease: str) -> tuple[tuple[PageRef, ...], ...] | None:
        """Of each cache group the pages under a lease; None when it is not open."""
        found = self._open.get(lease)
        return None if found is None else found.pages

    def pages(self) -> Iterator[tuple[int, PageRef]]:
        """Cache group and reference of every page under a lease, once for each lease."""
        for lease in self._open.values():
            for number, refs in enumerate(lease.pages):
                for ref in refs:
                    yield number, ref
