"""The KV cache of all groups: what a sequence takes when it starts, needs as it grows, and gives back.

A sequence holds pages in every group, from where the group's window begins for its next token to at least the end of
what the next step computes. Groups without a window hold it from its first token on.
"""

from collections.abc import Sequence as Items
from itertools import count

from trimaran.base.formats import bundle_pages
from trimaran.base.messages import CachePages
from trimaran.engine.group import HeldPages, PageGroup
from trimaran.engine.limits import SchedulerLimits
from trimaran.engine.pages import PagePool
from trimaran.engine.prefix import PrefixCache
from trimaran.engine.sequence import Sequence
from trimaran.engine.window import pages_of
from trimaran.kernels.page_tags import PageTags
from trimaran.kernels.step import Int32


class KVCache:
    """Pools, page tables and prefixes of all cache groups. Changes only between two steps.

    ``windows`` and ``num_pages`` are those of the groups; page ``i`` of a pool is page ``i`` of the executor's memory
    for that group, and the null page is counted.
    """

    def __init__(
        self,
        windows: Items[int | None],
        num_pages: Items[int],
        limits: SchedulerLimits,
        identity: bytes,
        *,
        prefix_caching: bool = True,
        page_tags: Items[PageTags] | None = None,
    ) -> None:
        """``identity`` says what cached pages mean (``prefix.py``); ``page_tags`` are what the executor looks at."""
        self._page_size = limits.page_size
        tags = count(1)
        marks = [None] * len(num_pages) if page_tags is None else page_tags
        bundle = bundle_pages(limits.page_size)
        self.groups = tuple(
            PageGroup(PagePool(pages - 1, tags, where, bundle=bundle), window, limits, tagged=where is not None)
            for window, pages, where in zip(windows, num_pages, marks, strict=True)
        )
        self._windowed = [(number, group) for number, group in enumerate(self.groups) if group.window is not None]
        self.tables: tuple[Int32, ...] = tuple(group.table for group in self.groups)
        kept = [group.expected for group in self.groups if group.expected is not None]
        self.expected = tuple(kept) if kept else None
        self.prefix = PrefixCache(self.groups, identity, enabled=prefix_caching)

    @property
    def unused(self) -> bool:
        """True when no sequence holds a page."""
        return all(group.pool.available + group.pool.quarantined == group.pool.total for group in self.groups)

    def place(self, sequence: Sequence, slot: int, reserve: int) -> bool:
        """Gives a sequence ``slot`` and the pages of a prefix that is cached, and those that all its tokens need: in a
        group with a window as many as any step will need at once. So its prefill cannot run dry half way.

        Of a sequence with ``known`` tokens these are the pages that the tokens after them read: the caller fills those
        that no prefix had, and advances the sequence.

        False, and nothing has changed, when that would leave less than ``reserve`` pages in a group.
        """
        cached, found = self.prefix.take(sequence)
        for number, group in self._windowed:
            group.skip(found[number], sequence.known)
        whole = pages_of(sequence.total, self._page_size)
        ends = [min(whole, held.first + group.most) for group, held in zip(self.groups, found, strict=True)]
        wanted = zip(self.groups, found, ends, strict=True)
        if any(end - held.end + reserve > group.pool.available for group, held, end in wanted):
            self._release(slot, found)
            return False
        for group, held, end in zip(self.groups, found, ends, strict=True):
            group.show(slot, held, sequence.keys[held.first : held.end], sequence.owner)
            group.extend(slot, held, end, sequence.id, sequence.owner)
        sequence.slot = slot
        sequence.pages = found
        sequence.computed = sequence.sealed = cached * self._page_size
        sequence.room = min(ends) * self._page_size
        self._note_due(sequence)
        return True

    def extend(self, sequence: Sequence, tokens: int) -> bool:
        """Gives a running sequence pages for its first ``tokens`` tokens, for which it has no room yet; False, and
        nothing has changed, when a group has too few."""
        assert sequence.slot is not None
        end = pages_of(tokens, self._page_size)
        for group, held in zip(self.groups, sequence.pages, strict=True):
            if end - held.end > group.pool.available:
                return False
        for group, held in zip(self.groups, sequence.pages, strict=True):
            group.extend(sequence.slot, held, end, sequence.id, sequence.owner)
        sequence.room = end * self._page_size
        return True

    def settle(self, sequence: Sequence) -> None:
        """Seals the pages that a committed step has filled, and gives back those that have left their window. There is
        nothing to do before ``sequence.computed`` reaches ``sequence.due``."""
        assert sequence.slot is not None
        self.prefix.publish(sequence)
        for number, group in self._windowed:
            group.give_back(sequence.slot, sequence.pages[number], sequence.computed)
        self._note_due(sequence)

    def release(self, sequence: Sequence) -> None:
        """Takes a sequence's slot and pages back; its tokens would have to be computed again."""
        assert sequence.slot is not None
        self.prefix.withdraw(sequence)
        self._release(sequence.slot, sequence.pages)
        sequence.slot = None
        sequence.pages = ()
        sequence.computed = sequence.sealed = sequence.room = sequence.due = 0

    def usage(self, running: Items[Sequence]) -> list[CachePages]:
        """How full each group's pool is, and how well the sequences that hold its pages fill and order them."""
        return [
            CachePages(
                window=group.window,
                total=group.pool.total,
                free=group.pool.free,
                cached=group.pool.cached,
                quarantined=group.pool.quarantined,
                slots=(group.pool.total - group.pool.available - group.pool.quarantined) * self._page_size,
                unused=sum(max(0, s.pages[number].end * self._page_size - s.total) for s in running),
                neighbours=sum(max(0, len(s.pages[number].refs) - 1) for s in running),
                jumps=sum(s.pages[number].jumps for s in running),
            )
            for number, group in enumerate(self.groups)
        ]

    def check(self) -> None:
        """Asserts that pools and page tables are whole; for tests."""
        for group in self.groups:
            group.pool.check()
            if group.pool.available + group.pool.quarantined == group.pool.total:
                assert not group.table.any(), "a free page stands in a table"

    def _note_due(self, sequence: Sequence) -> None:
        """Notes until when the sequence does not need ``settle``."""
        due = sequence.sealed + self._page_size
        for number, group in self._windowed:
            due = min(due, group.due(sequence.pages[number]))
        sequence.due = due

    def _release(self, slot: int, pages: Items[HeldPages]) -> None:
        for group, held in zip(self.groups, pages, strict=True):
            group.release(slot, held)
