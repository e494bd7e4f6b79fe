"""A queue in which no tenant holds up the others: start-time fair queueing (Goyal, Vin, Cheng 1996).

Within a priority each tenant gets an equal share of the tokens that go through, however many requests it has queued;
one that was idle has not saved anything up.
"""

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_TENANTS = 4096  # that are remembered though they have had their share


@dataclass(order=True)
class _Entry(Generic[T]):
    priority: int
    start: float  # virtual time at which its tenant's turn comes
    arrival: int
    item: T | None = field(compare=False)


class FairQueue(Generic[T]):
    """Items of tenants, with what each costs."""

    def __init__(self) -> None:
        self._heap: list[_Entry[T]] = []
        self._entries: dict[T, _Entry[T]] = {}
        self._now = 0.0
        self._finished: dict[str, float] = {}  # by tenant: virtual time at which what it queued last is through
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, item: T, tenant: str, cost: float, priority: int = 0) -> None:
        """Queues an item; smaller priorities go first."""
        start = max(self._now, self._finished.get(tenant, 0.0))
        self._finished[tenant] = start + cost
        self._add(item, priority, start)

    def push_back(self, item: T, priority: int = 0) -> None:
        """Queues an item that had its turn and has to go again: before all others of its priority."""
        self._add(item, priority, -1.0)

    def peek(self) -> T | None:
        """Whose turn it is; None when the queue is empty."""
        while self._heap and self._heap[0].item is None:
            heapq.heappop(self._heap)
        return self._heap[0].item if self._heap else None

    def remove(self, item: T) -> bool:
        """Takes an item out, whether it is its turn or not; False when it is not queued."""
        entry = self._entries.pop(item, None)
        if entry is None:
            return False
        if entry is self._heap[0]:
            self._now = max(self._now, entry.start)
        entry.item = None
        if len(self._finished) > MOST_TENANTS:
            self._finished = {tenant: end for tenant, end in self._finished.items() if end > self._now}
        return True

    def _add(self, item: T, priority: int, start: float) -> None:
        self._arrivals += 1
        entry = self._entries[item] = _Entry(priority, start, self._arrivals, item)
        heapq.heappush(self._heap, entry)
