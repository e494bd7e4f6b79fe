import pytest

from trimaran.engine.cache import KVCache
from trimaran.engine.prefix import PrefixCache

from .caching import PAGE, compute, make_cache, make_limits, sequence


@pytest.fixture
def cache() -> KVCache:
    return make_cache()


def found(cache: KVCache, tokens: list[int], **options) -> int:
    """Pages that a sequence would find; it does not keep them."""
    pages, held = cache.prefix.take(sequence(tokens, **options))
    for group, one in zip(cache.groups, held, strict=True):
        assert one.end == pages
        assert one.first == group.first(pages * PAGE)
        for ref in one.refs:
            group.pool.release(ref)
    return pages


def test_only_full_committed_pages_are_found(cache):
    compute(cache, sequence(list(range(40))))
    assert found(cache, list(range(40))) == 2
    assert found(cache, list(range(20))) == 1
    assert found(cache, list(range(1, 41))) == 0


def test_a_page_is_not_found_before_its_step_has_committed(cache):
    first = sequence(list(range(40)))
    compute(cache, first, tokens=20)
    assert first.pages[0].end == 3
    assert found(cache, list(range(40))) == 1


@pytest.mark.parametrize("length", [16, 17, 32, 33])
def test_the_last_token_is_always_left_to_compute(cache, length):
    compute(cache, sequence(list(range(64))))
    assert found(cache, list(range(length))) == (length - 1) // PAGE


def test_a_different_first_page_hides_an_equal_second_one(cache):
    compute(cache, sequence([1] * 16 + [2] * 16 + [3]))
    assert found(cache, [9] * 16 + [2] * 16 + [3]) == 0


def test_tenants_with_different_salts_share_nothing(cache):
    compute(cache, sequence(list(range(40)), salt="a"))
    assert found(cache, list(range(40)), salt="b") == 0
    assert found(cache, list(range(40)), salt="a") == 2


def test_models_and_formats_share_nothing(cache):
    def prefix(identity: bytes) -> PrefixCache:
        return PrefixCache(cache.groups, identity)

    tokens = sequence(list(range(16)))
    keys = {prefix(identity).key(sequence(list(range(16))), 0) for identity in (b"a", b"b", b"")}
    assert len(keys) == 3
    # Identity and salt cannot be shifted into each other.
    one = prefix(b"a").key(sequence(list(range(16)), salt="bc"), 0)
    other = prefix(b"ab").key(sequence(list(range(16)), salt="c"), 0)
    assert one != other
    assert len(prefix(b"a").key(tokens, 0)) == 32


def test_keys_depend_on_all_tokens_before(cache):
    a, b = sequence([1] * 16 + [2] * 16), sequence([3] * 16 + [2] * 16)
    assert cache.prefix.key(a, 1) != cache.prefix.key(b, 1)


def test_disabled_finds_nothing_and_keeps_nothing():
    cache = make_cache(enabled=False)
    first = sequence(list(range(40)))
    compute(cache, first)
    assert first.sealed == 32
    assert found(cache, list(range(40))) == 0
    cache.release(first)
    assert cache.groups[0].pool.free == cache.groups[0].pool.total


def test_what_a_running_sequence_will_publish_is_coming(cache):
    first = sequence(list(range(40)))
    cache.prefix.announce(first)
    twin, stranger = sequence(list(range(40)), name="t"), sequence([7] * 40)
    assert cache.prefix.is_coming(twin)
    assert not cache.prefix.is_coming(stranger)
    assert not cache.prefix.is_coming(sequence(list(range(16)))), "its only page must be computed anyway"
    compute(cache, first)
    assert not cache.prefix.is_coming(twin)


def test_nobody_waits_for_one_of_lower_priority(cache):
    cache.prefix.announce(sequence(list(range(40)), priority=5))
    assert not cache.prefix.is_coming(sequence(list(range(40)), priority=1))
    assert cache.prefix.is_coming(sequence(list(range(40)), priority=5))


def test_an_announcement_is_withdrawn_with_its_sequence(cache):
    first = sequence(list(range(40)))
    cache.prefix.announce(first)
    cache.prefix.withdraw(first)
    assert not cache.prefix.is_coming(sequence(list(range(40))))


def test_forgotten_pages_are_not_found(cache):
    first = sequence(list(range(40)))
    compute(cache, first)
    cache.prefix.forget(first)
    assert found(cache, list(range(40))) == 0
    cache.check()


LONG = list(range(16 * PAGE + 1))


@pytest.fixture(params=[(None, 40), (40, None), (40,)], ids=str)
def windowed(request) -> KVCache:
    return make_cache(request.param, [32] * len(request.param))


def take_away(cache: KVCache, index: int) -> None:
    """Makes the page with this index of ``LONG`` unfindable where there is a window."""
    key = cache.prefix.key(sequence(LONG), index)
    for group in cache.groups:
        if group.window is not None:
            assert group.pool.has(key)
            group.pool.forget(key)


def test_a_prefix_needs_only_the_windows_before_its_end(windowed):
    compute(windowed, sequence(LONG))
    assert found(windowed, LONG) == 16
    for index in range(13):  # token 256 sees from 217 on, in page 13
        take_away(windowed, index)
        assert found(windowed, LONG) == 16
    for index in (15, 14, 13):  # and less of the window's pages is no use: the next prefix needs earlier ones
        take_away(windowed, index)
        assert found(windowed, LONG) == 0


def test_the_longest_prefix_with_a_whole_window_is_taken(windowed):
    compute(windowed, sequence(LONG))
    take_away(windowed, 14)
    assert found(windowed, LONG) == 14
    take_away(windowed, 13)
    assert found(windowed, LONG) == 13
    take_away(windowed, 12)
    take_away(windowed, 3)
    assert found(windowed, LONG) == 12
    take_away(windowed, 10)
    assert found(windowed, LONG) == 10
    for index in (8, 5):
        take_away(windowed, index)
    assert found(windowed, LONG) == 3, "each longer prefix reads one of pages 3, 5 and 8"


def test_without_the_pages_of_a_whole_group_a_window_is_no_use():
    cache = make_cache((None, 40), (32, 32))
    compute(cache, sequence(LONG))
    cache.groups[0].pool.forget(cache.prefix.key(sequence(LONG), 9))
    assert found(cache, LONG) == 9


def test_what_a_failed_sequence_gave_back_is_forgotten_too(windowed):
    first = sequence(LONG)
    compute(windowed, first)
    windowed.prefix.forget(first)
    windowed.release(first)
    assert found(windowed, LONG) == 0
    assert all(group.pool.free == group.pool.total for group in windowed.groups)


def test_a_twin_waits_for_pages_that_a_window_has_lost(windowed):
    first = sequence(LONG)
    compute(windowed, first)
    windowed.release(first)
    for index in (2, 15):
        take_away(windowed, index)
    again = sequence(LONG, name="again")
    compute(windowed, again, tokens=15 * PAGE)
    assert again.computed == 15 * PAGE, "all but the last page were found"
    windowed.prefix.announce(again)
    assert windowed.prefix.is_coming(sequence(LONG))
    again.advance(PAGE)
    windowed.settle(again)
    assert not windowed.prefix.is_coming(sequence(LONG))
    assert found(windowed, LONG) == 16


def test_recomputed_pages_replace_those_that_nobody_holds():
    cache = make_cache((None, 40), (40, 40), make_limits())
    first = sequence(LONG)
    compute(cache, first)
    cache.release(first)
    take_away(cache, 15)
    take_away(cache, 2)
    take_away(cache, 7)
    take_away(cache, 12)
    compute(cache, sequence(LONG, name="again"), tokens=16 * PAGE)
    assert cache.groups[0].pool.cached == 0, "no copies of pages that are held"
    assert found(cache, LONG) == 16
    cache.check()
