"""The pool of a cache group's pages: who holds which page, which may be found by prefix, which are free.

A page is EMPTY (free), WRITING (one sequence holds it and fills it) or SEALED (full and immutable: any number of
sequences may hold it, and it can be found by its prefix key). A sealed page that nobody holds stays findable until its
memory is needed; such pages are taken oldest first. A page that something turned out to be wrong with is QUARANTINED:
nobody gets it any more.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Items
from enum import Enum
from itertools import count
from typing import NamedTuple

from trimaran.kernels.page_tags import PageTags, owner_number

NULL_PAGE = 0  # never handed out: what a masked row reads and writes


class PageState(Enum):
    EMPTY = "empty"
    WRITING = "writing"
    SEALED = "sealed"
    QUARANTINED = "quarantined"


class PageRef(NamedTuple):
    """A page and the tag it had when it was handed out. A page whose tag differs has changed hands since."""

    page: int
    tag: int


class PagePool:
    """``pages`` physical pages, numbered from 1; all bookkeeping is O(1) a page.

    Each allocation gives a page a new tag, and each free takes it away (0). ``tags`` is the counter that all pools of
    an engine draw them from: no two live pages share one. A live page also names its owner: the sequence while WRITING,
    the key once SEALED.
    """

    def __init__(
        self, pages: int, tags: Iterator[int] | None = None, marks: PageTags | None = None, *, bundle: int = 1
    ) -> None:
        """``marks`` is where the executor looks for tags and owners; None: nobody looks. ``bundle`` pages, neighbours
        by number, lie side by side in its memory.
        """
        self.total = pages
        self.tags, self.owner_numbers = PageTags.of(pages + 1) if marks is None else marks
        self.owners: list[str | bytes | None] = [None] * (pages + 1)
        self._states = [PageState.EMPTY] * (pages + 1)
        self.quarantined = 0
        self._references = array("i", bytes(4 * (pages + 1)))
        # Stacks, from which any can be taken: the page freed last is warm in the processor's caches.
        self._free = dict.fromkeys(range(pages, 0, -1))
        self._bundle = bundle
        self._missing = [0] * (pages // bundle + 1)  # pages of each bundle that are not free
        self._whole = dict.fromkeys(n for n in range(pages // bundle, -1, -1) if self._full(n))  # of these none is
        self._unheld: OrderedDict[int, None] = OrderedDict()  # sealed and findable, held by nobody, oldest first
        self._by_key: dict[bytes, int] = {}
        self._sources: dict[int, frozenset[str]] = {}  # of sealed pages that workers elsewhere have a part in
        self._new_tags = count(1) if tags is None else tags

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        """Sealed pages that nobody holds: free for taking, findable until taken."""
        return len(self._unheld)

    @property
    def available(self) -> int:
        """Pages that ``allocate`` can hand out."""
        return len(self._free) + len(self._unheld)

    def state(self, page: int) -> PageState:
        return self._states[page]

    def references(self, page: int) -> int:
        return self._references[page]

    def allocate(self, owner: str, wanted: int = NULL_PAGE, number: int | None = None) -> PageRef:
        """Hands out a page for ``owner`` to write: ``wanted``, if that is free. The caller has checked ``available``,
        and may know the ``number`` that stands for ``owner``.

        Who asks for the page after its last one has its pages in a row, where others leave room for that: who asks for
        any begins a bundle that is free as a whole, while there is one.
        """
        if not self._free:
            oldest, _ = self._unheld.popitem(last=False)
            self._empty(oldest)
        if wanted in self._free:
            page = wanted
        elif self._whole:
            page = max(1, next(reversed(self._whole)) * self._bundle)
        else:
            page = next(reversed(self._free))
        self._take(page)
        self.tags[page] = tag = next(self._new_tags)
        self.owners[page] = owner
        self.owner_numbers[page] = owner_number(owner) if number is None else number
        self._states[page] = PageState.WRITING
        self._references[page] = 1
        return PageRef(page, tag)

    def seal(self, ref: PageRef, key: bytes, *, findable: bool = True, sources: frozenset[str] = frozenset()) -> None:
        """Makes a full page immutable. Call it after the step that filled the page has succeeded. ``sources`` are the
        workers elsewhere that computed it, or something that it was computed from.

        When two sequences computed the same prefix side by side, the first page is the findable one; the other serves
        its holder and is freed after it. One that nobody holds any more makes room for the new one.
        """
        assert self.tags[ref.page] == ref.tag, f"{ref} is not held"
        assert self._states[ref.page] is PageState.WRITING, "a page is sealed once"
        self._states[ref.page] = PageState.SEALED
        self._own(ref.page, key)
        if sources:
            self._sources[ref.page] = sources
        if findable:
            if self._by_key.get(key) in self._unheld:
                self.forget(key)
            self._by_key.setdefault(key, ref.page)

    def has(self, key: bytes) -> bool:
        """True when ``find`` would give a page."""
        return key in self._by_key

    def leading(self, keys: Items[bytes]) -> int:
        """How many of ``keys``, from the first one on, it ``has``. A long prompt that waits asks this every step."""
        by_key = self._by_key
        for number, key in enumerate(keys):
            if key not in by_key:
                return number
        return len(keys)

    def find(self, key: bytes) -> PageRef | None:
        """Takes a reference on the sealed page with this prefix key, if there is one."""
        page = self._by_key.get(key)
        if page is None:
            return None
        self._unheld.pop(page, None)
        self._references[page] += 1
        return PageRef(page, int(self.tags[page]))

    def sources(self, refs: Items[PageRef]) -> frozenset[str]:
        """The workers elsewhere that have a part in any of these pages, which are held."""
        return frozenset().union(*(self._sources.get(ref.page, ()) for ref in refs)) if self._sources else frozenset()

    def held(self, ref: PageRef) -> bool:
        """Whether the reference is good: the page has not changed hands, and somebody holds it."""
        return self._references[ref.page] > 0 and bool(self.tags[ref.page] == ref.tag)

    def hold(self, ref: PageRef) -> None:
        """Takes one more reference on a page that somebody holds, filled or not."""
        assert self.held(ref), f"{ref} is not held"
        self._references[ref.page] += 1

    def release(self, ref: PageRef) -> None:
        """Gives one reference back; the last one frees the page, or leaves it findable if it is sealed."""
        page, tag = ref
        assert self.tags[page] == tag, f"{ref} is not held"
        assert self._references[page] > 0, f"{ref} was released too often"
        self._references[page] -= 1
        if self._references[page]:
            return
        if self._findable(page):
            self._unheld[page] = None
        else:
            self._empty(page)

    def forget(self, key: bytes) -> None:
        """Makes the page with this prefix key unfindable; if somebody holds it, the last one's release frees it."""
        page = self._by_key.pop(key, None)
        if page is not None and page in self._unheld:
            del self._unheld[page]
            self._empty(page)

    def distrust(self, source: str) -> int:
        """Makes the pages unfindable that a worker elsewhere has a part in: how many could be found until now."""
        keys = [self.owners[page] for page, sources in self._sources.items() if source in sources]
        found = [key for key in keys if isinstance(key, bytes) and key in self._by_key]
        for key in found:
            self.forget(key)
        return len(found)

    def quarantine(self, page: int) -> None:
        """Takes a page that something is wrong with out of use for good, whatever its state; nobody may hold it."""
        if self._states[page] is PageState.QUARANTINED:
            return
        if self._states[page] is PageState.EMPTY:
            self._take(page)
        else:
            self._unheld.pop(page, None)
            self._unpublish(page)
        self.tags[page] = 0
        self._own(page, None)
        self._sources.pop(page, None)
        self._references[page] = 0
        self._states[page] = PageState.QUARANTINED
        self.quarantined += 1

    def recount(self, page: int, holders: int) -> None:
        """Corrects how many hold a live page, at least one, after a fault in the books."""
        self._unheld.pop(page, None)
        self._references[page] = holders

    def check(self) -> None:
        """Asserts that no page was lost or is held twice over; for tests, it walks the whole pool."""
        pages = range(1, self.total + 1)
        held = sum(self._references[page] > 0 for page in pages)
        counts = (self.free, self.cached, held, self.quarantined)
        assert sum(counts) == self.total, (counts, self.total)
        dead = (PageState.EMPTY, PageState.QUARANTINED)
        live = [int(self.tags[page]) for page in pages if self._states[page] not in dead]
        assert all(live), "a live page has a tag"
        assert len(set(live)) == len(live), "tags of live pages differ"
        assert all(self._states[page] is PageState.SEALED for page in self._sources)
        for number, missing in enumerate(self._missing):
            members = range(max(1, number * self._bundle), min(self.total + 1, (number + 1) * self._bundle))
            assert missing == sum(page not in self._free for page in members), number
            assert (number in self._whole) == (not missing and self._full(number)), number
        for page in [NULL_PAGE, *self._free]:
            assert (self.tags[page], self._references[page], self.owners[page]) == (0, 0, None), page
        for key, page in self._by_key.items():
            assert (self._states[page], self.owners[page]) == (PageState.SEALED, key), page
        for page in self._unheld:
            assert self._references[page] == 0, page
            assert self._findable(page), page

    def _full(self, bundle: int) -> bool:
        """Whether the pool has all of a bundle's pages; of the first one, all but the null page."""
        first = bundle * self._bundle
        return first + self._bundle <= self.total + 1 and first + self._bundle > 1

    def _take(self, page: int) -> None:
        del self._free[page]
        bundle = page // self._bundle
        self._missing[bundle] += 1
        self._whole.pop(bundle, None)

    def _own(self, page: int, owner: str | bytes | None) -> None:
        self.owners[page] = owner
        self.owner_numbers[page] = 0 if owner is None else owner_number(owner)

    def _findable(self, page: int) -> bool:
        owner = self.owners[page]
        return isinstance(owner, bytes) and self._by_key.get(owner) == page

    def _unpublish(self, page: int) -> None:
        owner = self.owners[page]
        if isinstance(owner, bytes) and self._by_key.get(owner) == page:
            del self._by_key[owner]

    def _empty(self, page: int) -> None:
        self._unpublish(page)
        self.tags[page] = 0
        self._own(page, None)
        self._sources.pop(page, None)
        self._states[page] = PageState.EMPTY
        self._free[page] = None
        bundle = page // self._bundle
        self._missing[bundle] -= 1
        if not self._missing[bundle] and self._full(bundle):
            self._whole[bundle] = None
