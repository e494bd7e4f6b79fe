"""A cache group as the engine sees it: its pool, its page table, and what moves between the two."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from trimaran.engine.limits import SchedulerLimits
from trimaran.engine.pages import NULL_PAGE, PagePool, PageRef
from trimaran.engine.window import first_page, most_pages, pages_of, passed_at
from trimaran.kernels.page_tags import PageTags, owner_number
from trimaran.kernels.step import Int32


@dataclass(slots=True)
class HeldPages:
    """A sequence's pages in one group: references on pages number ``first`` to ``end - 1`` of the sequence."""

    first: int = 0
    refs: list[PageRef] = field(default_factory=list)
    jumps: int = 0  # pages that are not the next in memory after the page before them

    def add(self, ref: PageRef) -> None:
        """Appends a page."""
        if self.refs and ref.page != self.refs[-1].page + 1:
            self.jumps += 1
        self.refs.append(ref)

    def drop(self, count: int) -> list[PageRef]:
        """Takes the first ``count`` pages off."""
        dropped = self.refs[:count]
        self.jumps -= sum(after.page != ref.page + 1 for ref, after in zip(dropped, self.refs[1:], strict=False))
        self.first += count
        del self.refs[:count]
        return dropped

    @property
    def end(self) -> int:
        return self.first + len(self.refs)


class PageGroup:
    """The pages of one cache group, and the table by which an executor finds them.

    A row of the table says what the sequence in that slot holds, and nothing else: a page enters it when it is taken
    and leaves it when it is given back, so that no step can read a page through an entry that has become stale. All
    this happens between two steps.
    """

    def __init__(self, pool: PagePool, window: int | None, limits: SchedulerLimits, *, tagged: bool = True) -> None:
        """``tagged``: an executor compares what is ``expected`` of the table's entries."""
        self.pool = pool
        self.window = window
        self.page_size = limits.page_size
        self.most = most_pages(limits.context, limits.max_num_batched_tokens, window, limits.page_size)
        assert pool.total >= self.most, "one full sequence must fit the pool"
        self.lost: list[PageRef] = []  # references that had become no good before they were given back
        pages = pages_of(limits.context, limits.page_size)
        self.table: Int32 = np.zeros((limits.max_num_seqs, pages), np.int32)
        self.expected = PageTags.of(limits.max_num_seqs, pages) if tagged else None

    def first(self, position: int) -> int:
        """Index of the first page that the token at ``position`` reads."""
        return first_page(position, self.window, self.page_size)

    def find(self, keys: Items[bytes]) -> HeldPages:
        """References on those pages of a prefix that the token after it reads. ``keys`` are those of its pages, which
        the caller knows to be there."""
        found = HeldPages(self.first(len(keys) * self.page_size))
        for key in keys[found.first :]:
            ref = self.pool.find(key)
            assert ref is not None, "the caller has looked"
            found.add(ref)
        return found

    def skip(self, held: HeldPages, position: int) -> None:
        """Gives back those pages of a prefix that was found which no token from ``position`` on, behind its end, reads;
        the next page that is added is the first that such a token does read, or follows those that are left."""
        first = self.first(position)
        if first > held.first:
            for ref in held.drop(min(first - held.first, len(held.refs))):
                self.let_go(ref)
            held.first = first

    def show(self, slot: int, held: HeldPages, keys: Items[bytes], reader: int) -> None:
        """Enters all of a sequence's pages into its row: sealed ones, whose prefix keys are ``keys``. ``reader`` is the
        sequence's number."""
        entries = slice(held.first, held.end)
        self.table[slot, entries] = [ref.page for ref in held.refs]
        if self.expected is not None:
            self.expected.tags[slot, entries] = [ref.tag for ref in held.refs]
            self.expected.owners[slot, entries] = [owner_number(key) ^ reader for key in keys]

    def extend(self, slot: int, held: HeldPages, end: int, owner: str, reader: int) -> None:
        """Takes pages up to index ``end`` for the sequence called ``owner``, whose number is ``reader``; the caller
        knows that so many are available."""
        expected = self.expected
        for index in range(held.end, end):
            ref = self.pool.allocate(owner, held.refs[-1].page + 1 if held.refs else NULL_PAGE, reader)
            held.add(ref)
            self.table[slot, index] = ref.page
            if expected is not None:
                expected.tags[slot, index] = ref.tag
                expected.owners[slot, index] = 0  # the sequence's own

    def seal(
        self,
        slot: int,
        held: HeldPages,
        index: int,
        key: bytes,
        reader: int,
        *,
        findable: bool,
        sources: frozenset[str],
    ) -> None:
        """Makes the sequence's page number ``index``, which is full, immutable; see ``PagePool.seal``."""
        self.pool.seal(held.refs[index - held.first], key, findable=findable, sources=sources)
        if self.expected is not None:
            self.expected.owners[slot, index] = owner_number(key) ^ reader

    def give_back(self, slot: int, held: HeldPages, position: int) -> None:
        """Gives back the pages that no token from ``position`` on reads. Sealed ones stay findable until taken."""
        first = self.first(position)
        if first > held.first:
            self._clear(slot, held.first, first)
            for ref in held.drop(first - held.first):
                self.let_go(ref)

    def due(self, held: HeldPages) -> int:
        """The position at which the first page held may be given back; there is a window."""
        assert self.window is not None
        return passed_at(held.first, self.window, self.page_size)

    def release(self, slot: int, held: HeldPages) -> None:
        """Gives all pages back and clears the row."""
        self._clear(slot, held.first, held.end)
        # Last page first: what is evicted first must be the end of a prefix, the beginning is useful without it.
        for ref in reversed(held.refs):
            self.let_go(ref)

    def let_go(self, ref: PageRef) -> None:
        """Gives a reference back; one that is no good any more, which is a fault of ours, only counts as lost."""
        if self.pool.held(ref):
            self.pool.release(ref)
        else:
            self.lost.append(ref)

    def _clear(self, slot: int, first: int, end: int) -> None:
        self.table[slot, first:end] = NULL_PAGE
        if self.expected is not None:
            self.expected.tags[slot, first:end] = 0
            self.expected.owners[slot, first:end] = 0
