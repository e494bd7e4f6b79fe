import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from trimaran.engine.pages import NULL_PAGE, PagePool, PageRef, PageState

PAGES = 6


any_of = st.integers(0, 10**6)  # picks one of a list, whatever its length
keys = st.sampled_from([b"k1", b"k2", b"k3"])


class Pool(RuleBasedStateMachine):
    """The pool against a model that remembers who was given what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, bundle=4)
        self.writing: list[PageRef] = []
        self.sealed: list[PageRef] = []  # one entry for each reference held
        self.keys: dict[PageRef, bytes] = {}
        self.seen_tags: set[int] = set()

    @precondition(lambda self: self.pool.available)
    @rule(owner=st.sampled_from("ab"), wanted=st.integers(NULL_PAGE, PAGES + 1))
    def allocate(self, owner: str, wanted: int) -> None:
        free = 0 < wanted <= PAGES and self.pool.state(wanted) is PageState.EMPTY
        ref = self.pool.allocate(owner, wanted)
        assert ref.page != NULL_PAGE
        assert ref.page == wanted or not free
        assert ref.tag not in self.seen_tags, "tags are never used twice"
        assert all(ref.page != other.page for other in self.writing + self.sealed), "the page is held already"
        assert self.pool.owners[ref.page] == owner
        self.seen_tags.add(ref.tag)
        self.writing.append(ref)

    @precondition(lambda self: self.writing)
    @rule(which=any_of, key=keys)
    def seal(self, which: int, key: bytes) -> None:
        ref = self.writing.pop(which % len(self.writing))
        self.pool.seal(ref, key)
        assert self.pool.owners[ref.page] == key
        self.keys[ref] = key
        self.sealed.append(ref)

    @rule(key=keys)
    def find(self, key: bytes) -> None:
        expected = self.pool.has(key)
        ref = self.pool.find(key)
        assert (ref is not None) == expected
        if ref is not None:
            assert self.keys[ref] == key, "found under another page's key, or a page that has changed hands"
            assert self.pool.state(ref.page) is PageState.SEALED
            self.sealed.append(ref)

    @rule(wanted=st.lists(keys, max_size=4))
    def leading(self, wanted: list[bytes]) -> None:
        count = self.pool.leading(wanted)
        assert all(self.pool.has(key) for key in wanted[:count])
        assert count == len(wanted) or not self.pool.has(wanted[count])

    @rule(key=keys)
    def forget(self, key: bytes) -> None:
        self.pool.forget(key)
        assert not self.pool.has(key)

    @precondition(lambda self: self.writing or self.sealed)
    @rule(which=any_of)
    def release(self, which: int) -> None:
        held = self.writing if which % (len(self.writing) + len(self.sealed)) < len(self.writing) else self.sealed
        self.pool.release(held.pop(which % len(held)))

    @invariant()
    def conserves(self) -> None:
        self.pool.check()
        held = Counter(self.writing + self.sealed)
        assert self.pool.available == PAGES - len({ref.page for ref in held})
        for ref, count in held.items():
            assert self.pool.tags[ref.page] == ref.tag, "a held page changed hands"
            assert self.pool.references(ref.page) == count


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_sealed_page_stays_findable_until_its_memory_is_needed():
    pool = PagePool(2)
    first, second = pool.allocate("s"), pool.allocate("s")
    pool.seal(first, b"1")
    pool.seal(second, b"2")
    pool.release(second)
    pool.release(first)
    assert (pool.free, pool.cached) == (0, 2)
    pool.allocate("t")
    assert pool.has(b"1"), "released last, taken last"
    assert not pool.has(b"2")


def test_taking_a_page_by_prefix_keeps_its_tag_and_freeing_clears_it():
    pool = PagePool(1)
    ref = pool.allocate("s")
    pool.seal(ref, b"k")
    pool.release(ref)
    assert pool.find(b"k") == ref
    pool.release(ref)
    again = pool.allocate("t")
    assert again.page == ref.page
    assert again.tag > ref.tag
    pool.release(again)
    assert pool.tags[again.page] == 0


def test_the_second_page_with_a_key_is_freed_with_its_holder():
    pool = PagePool(2)
    first, second = pool.allocate("s"), pool.allocate("t")
    pool.seal(first, b"k")
    pool.seal(second, b"k")
    pool.release(second)
    assert pool.free == 1
    assert pool.find(b"k") == first


def test_a_page_that_nobody_holds_makes_room_for_a_new_one_with_its_key():
    pool = PagePool(2)
    first = pool.allocate("s")
    pool.seal(first, b"k")
    pool.release(first)
    second = pool.allocate("t")
    pool.seal(second, b"k")
    assert (pool.free, pool.cached) == (1, 0)
    assert pool.find(b"k") == second


def test_pools_draw_their_tags_from_one_counter():
    tags = itertools.count(1)
    pools = [PagePool(2, tags), PagePool(2, tags)]
    given = [pool.allocate("s").tag for _ in range(2) for pool in pools]
    assert given == [1, 2, 3, 4]


def test_an_unfindable_page_is_freed_at_once():
    pool = PagePool(1)
    ref = pool.allocate("s")
    pool.seal(ref, b"k", findable=False)
    assert not pool.has(b"k")
    pool.release(ref)
    assert pool.free == 1


def test_a_stale_reference_is_refused():
    pool = PagePool(1)
    ref = pool.allocate("s")
    pool.release(ref)
    pool.allocate("t")
    with pytest.raises(AssertionError, match="not held"):
        pool.release(ref)
    with pytest.raises(AssertionError, match="not held"):
        pool.seal(ref, b"k")


def test_who_asks_for_any_page_begins_a_bundle_that_is_free_as_a_whole():
    pool = PagePool(19, bundle=4)  # bundles 1-3, 4-7, 8-11, 12-15 and 16-19
    first = [pool.allocate("a") for _ in range(3)]
    assert [ref.page for ref in first] == [1, 4, 8]
    assert pool.allocate("a", wanted=9).page == 9
    assert [pool.allocate("b").page for _ in range(2)] == [12, 16]
    pool.check()
    assert pool.allocate("c").page == 2, "no bundle is whole any more"
    pool.release(first[1])
    assert pool.allocate("d").page == 4, "one is again"
    pool.check()


def test_check_finds_a_lost_page():
    pool = PagePool(2)
    pool._free.popitem()
    with pytest.raises(AssertionError):
        pool.check()
