"""Transfers beside a campaign of page faults: pages under leases, and copies that come too late or to the wrong page.

What must not be written is the opposite of what the page held: were a copy to get through, a token would be wrong.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from random import Random

from trimaran.base.errors import PageIntegrityError, TransferError
from trimaran.bench.faults import free_under_holders
from trimaran.engine.engine import Engine
from trimaran.engine.pages import PageRef, PageState
from trimaran.engine.sequence import Sequence
from trimaran.kernels.step import UInt8

MOST = 4  # open at once
LEASE_SECONDS = 3600.0  # a campaign ends them itself


@dataclass(frozen=True)
class Copy:
    """A page that a lease had while its sequence was filling it, and what would have been written there."""

    lease: str
    group: int
    ref: PageRef
    owner: int
    data: UInt8


class Transfers:
    """Opens leases on pages of running sequences, ends them by word or by time, and injects faults of transfers."""

    def __init__(self, engine: Engine, random: Random) -> None:
        self._engine = engine
        self._random = random
        self._names = 0
        self._open: dict[str, list[Copy]] = {}
        self._over: list[Copy] = []
        self.refused = 0  # copies in order that were not let through, and pages were what they ought to be
        self.leases = 0

    def turn(self, sequences: Items[Sequence]) -> None:
        """What may happen between two steps where nothing is wrong."""
        random = self._random
        if sequences and len(self._open) < MOST and random.random() < 0.3:
            self._begin(random.choice(sequences))
        if self._open and random.random() < 0.15:
            self._engine.leases.close(name := random.choice(list(self._open)))
            self._end(name)
        if random.random() < 0.03:
            self.expire()

    def expire(self) -> None:
        """Ends all leases by time."""
        for name in self._engine.reap(float("inf")):
            self._end(name)

    def copy_late(self) -> bool | None:
        """A copy arrives after its lease: whether it was refused; None when there is none."""
        if not self._over:
            return None
        return self._refuses(self._over.pop(self._random.randrange(len(self._over))), TransferError)

    def free_under_lease(self) -> bool | None:
        """A page that a transfer writes is freed, by a bug, and perhaps somebody else's when the copy arrives."""
        copies = [copy for copies in self._open.values() for copy in copies if self._held(copy)]
        if not copies:
            return None
        copy = self._random.choice(copies)
        group = self._engine.cache.groups[copy.group]
        alone = not any(copy.ref in each.pages[copy.group].refs for each in self._engine.sequences if each.pages)
        if not alone or not free_under_holders(group, copy.ref):
            return None
        if self._random.random() < 0.5 and group.pool.free:
            taken = group.pool.allocate("somebody", copy.ref.page)
            refused = self._refuses(copy, PageIntegrityError)
            group.pool.release(taken)
            return refused
        return self._refuses(copy, PageIntegrityError)

    def _begin(self, sequence: Sequence) -> None:
        engine, name = self._engine, f"transfer-{self._names}"
        self._names += 1
        pools = [group.pool for group in engine.cache.groups]
        pages = [[ref for ref in held.refs if pool.held(ref)] for pool, held in zip(pools, sequence.pages, strict=True)]
        engine.leases.open(name, pages, LEASE_SECONDS)
        self.leases += 1
        copies = self._open[name] = []
        page_format = engine.executor.layout.page_format
        for number, (pool, refs) in enumerate(zip(pools, pages, strict=True)):
            for ref in refs:
                if pool.state(ref.page) is PageState.WRITING and pool.owners[ref.page] == sequence.id:
                    data = engine.handover.give(name, number, [ref], page_format)
                    try:
                        engine.handover.take(name, number, [ref], sequence.owner, data)  # what it has: nothing changes
                    except PageIntegrityError:
                        self.refused += int(pool.owner_numbers[ref.page]) == sequence.owner
                    copies.append(Copy(name, number, ref, sequence.owner, ~data))

    def _end(self, name: str) -> None:
        self._over = [*self._over[-20:], *self._open.pop(name)]

    def _held(self, copy: Copy) -> bool:
        return self._engine.cache.groups[copy.group].pool.held(copy.ref)

    def _refuses(self, copy: Copy, error: type[Exception]) -> bool:
        try:
            self._engine.handover.take(copy.lease, copy.group, [copy.ref], copy.owner, copy.data)
        except error:
            return True
        return False
