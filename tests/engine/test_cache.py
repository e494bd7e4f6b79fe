import pytest

from trimaran.engine.cache import KVCache
from trimaran.engine.pages import PageState

from .caching import PAGE, compute, make_cache, make_limits, sequence


def rows(cache: KVCache, slot: int) -> list[list[int]]:
    return [table[slot].tolist() for table in cache.tables]


@pytest.fixture
def cache() -> KVCache:
    """Two groups; three pages hold what a step of 8 tokens and the window of 20 before it need."""
    return make_cache((None, 20), (9, 3), make_limits(context=128, rows=8))


def test_a_sequence_takes_whole_pages_and_no_more_than_a_step_needs_of_a_window(cache):
    first = sequence(list(range(100)))
    assert cache.place(first, 1, reserve=0)
    assert rows(cache, 1) == [[1, 2, 3, 4, 5, 6, 7, 0], [1, 2, 3, 0, 0, 0, 0, 0]]
    assert (first.slot, first.computed, first.room) == (1, 0, 3 * PAGE)
    assert rows(cache, 0) == [[0] * 8] * 2


def test_pages_that_left_the_window_are_given_back_with_the_step_that_passed_them(cache):
    first = sequence(list(range(100)))
    compute(cache, first, tokens=34, slot=0, rows=8)
    assert rows(cache, 0)[1] == [1, 2, 3, 0, 0, 0, 0, 0]
    first.advance(1)  # token 35 sees 16 and later
    assert first.computed >= first.due
    cache.settle(first)
    assert rows(cache, 0)[1] == [0, 2, 3, 0, 0, 0, 0, 0], "its place in the table is cleared"
    pool = cache.groups[1].pool
    assert (pool.free, pool.cached, pool.state(1)) == (0, 1, PageState.SEALED), "and it can still be found"
    first.advance(8)
    cache.settle(first)
    assert first.room == 48
    assert cache.extend(first, 51)
    assert rows(cache, 0)[1] == [0, 2, 3, 1, 0, 0, 0, 0], "until its memory is needed"
    assert pool.cached == 0
    cache.check()


def test_nothing_is_taken_where_one_group_has_too_little(cache):
    first, second = sequence(list(range(100))), sequence([7] * 30)
    assert cache.place(first, 0, reserve=0)
    before = rows(cache, 0)
    assert not cache.place(second, 1, reserve=0), "three pages are all there is"
    assert (second.slot, second.pages, second.room) == (None, (), 0)
    assert not cache.extend(first, 8 * PAGE), "the window has no page left"
    assert rows(cache, 0) == before
    assert rows(cache, 1) == [[0] * 8] * 2
    assert [group.pool.available for group in cache.groups] == [2, 0]


def test_an_admission_leaves_a_reserve_in_every_group():
    cache = make_cache((None, 20), (9, 4), make_limits(context=128, rows=8))
    assert not cache.place(sequence([1] * 40), 0, reserve=2)
    assert cache.unused
    assert cache.place(sequence([1] * 40), 0, reserve=1)


def test_a_row_is_cleared_for_the_next_owner(cache):
    first = sequence(list(range(100)))
    compute(cache, first, rows=8)
    cache.release(first)
    assert rows(cache, 0) == [[0] * 8] * 2
    assert (first.slot, first.pages, first.computed, first.sealed) == (None, (), 0, 0)
    assert cache.unused
    cache.check()


def test_a_continued_sequence_starts_at_the_window_before_it(cache):
    first = sequence(list(range(90)))
    compute(cache, first, rows=8)
    cache.release(first)
    again = sequence(list(range(90)), name="again")
    assert cache.place(again, 2, reserve=0)
    assert (again.computed, again.sealed, again.room) == (80, 80, 96)
    assert [held.first for held in again.pages] == [0, 3], "token 80 sees 61 and later"
    assert rows(cache, 2)[1][:3] == [0, 0, 0]
    assert all(rows(cache, 2)[1][3:6])


def test_tags_differ_between_groups(cache):
    first = sequence(list(range(100)))
    assert cache.place(first, 0, reserve=0)
    tags = [ref.tag for held in first.pages for ref in held.refs]
    assert len(set(tags)) == len(tags) == 10


def test_a_growing_sequence_takes_the_page_after_its_last_one_where_that_is_free():
    cache = make_cache((None,), (9,), make_limits(context=128))
    first, second = sequence([1] * 32, name="a"), sequence([2] * 16, name="b")
    assert cache.place(first, 0, reserve=0)
    assert cache.place(second, 1, reserve=0)
    assert rows(cache, 0)[0][:3] == [1, 2, 0]
    assert rows(cache, 1)[0][:2] == [3, 0]
    assert cache.extend(first, 48), "page 3 is taken"
    assert cache.extend(second, 32), "and page 4 now too"
    assert cache.extend(first, 64)
    assert cache.extend(second, 48)
    assert rows(cache, 0)[0][:4] == [1, 2, 4, 6]
    assert rows(cache, 1)[0][:3] == [3, 5, 7]
    cache.release(first)
    third = sequence([3] * 32, name="c")
    assert cache.place(third, 0, reserve=0)
    assert cache.extend(second, 64)
    assert rows(cache, 1)[0][:4] == [3, 5, 7, 8], "not the page that was freed last"
    cache.check()


def test_usage_counts_places_without_a_token_and_pages_that_lie_apart():
    cache = make_cache((None, 20), (9, 9), make_limits(context=128, rows=8))
    first, second = sequence([1] * 20, name="a"), sequence([2] * 16, name="b")
    assert cache.place(first, 0, reserve=0)
    assert cache.place(second, 1, reserve=0)
    assert cache.extend(first, 33)
    whole, windowed = cache.usage([first, second])
    assert (whole.window, whole.slots, whole.unused) == (None, 4 * PAGE, 3 * PAGE - 20)
    assert (whole.neighbours, whole.jumps) == (2, 1), "pages 1, 2 and 4; page 3 is the other's"
    assert (windowed.window, windowed.neighbours, windowed.jumps) == (20, 2, 1)
    first.tokens.extend([1] * 28)
    first.advance(48)
    cache.settle(first)
    whole, windowed = cache.usage([first, second])
    assert (whole.unused, whole.jumps) == (0, 1)
    assert (windowed.neighbours, windowed.jumps) == (1, 1), "page 1 has left the window"
    cache.release(first)
    cache.release(second)
    assert [(pages.slots, pages.unused, pages.jumps) for pages in cache.usage([])] == [(0, 0, 0)] * 2
