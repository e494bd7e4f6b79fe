"""Keeps what a sequence's pages hold while it has none, for engines that may not compute it a second time.

A decode pool has got a prompt's pages from a prefill pool, perhaps of another precision. Were they computed again here,
the tokens after them would depend on when memory ran out. So the pages that the sequence still reads are copied out,
in their own format, and copied back into others later.

At any time that is at most what two pools of pages hold: sequences that are parked go before others of their priority,
so those that run can only have taken the pages once more. Sequences of higher priorities could make it more; they wait
instead (``room``).
"""

from dataclasses import dataclass

import numpy as np

from trimaran.base.errors import PageIntegrityError
from trimaran.engine.cache import KVCache
from trimaran.engine.handover import Handover
from trimaran.engine.sequence import Sequence
from trimaran.engine.window import pages_of
from trimaran.kernels.step import Executor, UInt8


@dataclass(frozen=True, slots=True)
class _Parked:
    firsts: tuple[int, ...]  # of each cache group the index of the first page in the sequence
    pages: tuple[UInt8, ...]  # [n, bytes of a page]


class Parking:
    """Pages of sequences that wait. Works between two steps only."""

    def __init__(self, executor: Executor, cache: KVCache, handover: Handover) -> None:
        self._executor = executor
        self._cache = cache
        self._handover = handover
        self._parked: dict[Sequence, _Parked] = {}

    @property
    def bytes(self) -> int:
        """What is kept now."""
        return sum(pages.nbytes for parked in self._parked.values() for pages in parked.pages)

    @property
    def room(self) -> bool:
        """Whether a sequence may be parked only because another one is more urgent."""
        return self.bytes < self._executor.kv_bytes

    def keep(self, sequence: Sequence) -> bool:
        """Copies out what the sequence, which is about to give up its pages, still reads. False, and nothing is kept,
        when one of them has changed hands: the sequence cannot go on."""
        layout, end = self._executor.layout, pages_of(sequence.computed, self._executor.page_size)
        firsts, pages = [], []
        for number, (group, held) in enumerate(zip(self._cache.groups, sequence.pages, strict=True)):
            first = group.first(sequence.computed)
            refs = held.refs[first - held.first : end - held.first]
            firsts.append(first)
            try:
                pages.append(self._handover.copy_out(sequence.id, number, refs, layout.page_format))
            except PageIntegrityError:
                return False
        sequence.known = sequence.computed
        self._parked[sequence] = _Parked(tuple(firsts), tuple(pages))
        return True

    def bring_back(self, sequence: Sequence) -> None:
        """Fills the pages that a sequence has been given again; does nothing for one that was not parked."""
        parked = self._parked.pop(sequence, None)
        if parked is None:
            return
        cached = sequence.computed // self._executor.page_size  # pages that the prefix cache had: the same bits
        for number, (held, first, data) in enumerate(zip(sequence.pages, parked.firsts, parked.pages, strict=True)):
            begin = max(first, cached)
            refs = held.refs[begin - held.first : first + len(data) - held.first]
            numbers = np.array([ref.page for ref in refs], np.int32)
            self._executor.import_pages(number, numbers, data[begin - first :])
        if sequence.computed < sequence.known:
            sequence.advance(sequence.known - sequence.computed)
            self._cache.settle(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept of a sequence that has ended."""
        self._parked.pop(sequence, None)
