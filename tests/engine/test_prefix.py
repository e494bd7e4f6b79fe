import pytest

from trimaran.base.sampling import SamplingParams
from trimaran.engine.pages import PagePool
from trimaran.engine.prefix import PrefixCache
from trimaran.engine.sequence import Sequence

PAGE = 16


def sequence(tokens: list[int], *, salt: str = "", name: str = "s", priority: int = 0) -> Sequence:
    return Sequence(name, tokens, SamplingParams(), salt=salt, priority=priority)


def compute(sequence: Sequence, pool: PagePool, prefix: PrefixCache, tokens: int | None = None) -> None:
    """What scheduler and engine do for a sequence that runs alone."""
    sequence.pages = prefix.take(sequence)
    sequence.computed = sequence.sealed = len(sequence.pages) * PAGE
    while len(sequence.pages) * PAGE < sequence.total:
        sequence.pages.append(pool.allocate(sequence.id))
    sequence.advance((tokens or sequence.total) - sequence.computed)
    prefix.publish(sequence)


@pytest.fixture
def pool() -> PagePool:
    return PagePool(32)


@pytest.fixture
def prefix(pool: PagePool) -> PrefixCache:
    return PrefixCache(pool, PAGE, b"model")


def test_only_full_committed_pages_are_found(pool, prefix):
    compute(sequence(list(range(40))), pool, prefix)
    assert len(prefix.take(sequence(list(range(40))))) == 2
    assert len(prefix.take(sequence(list(range(20))))) == 1
    assert prefix.take(sequence(list(range(1, 41)))) == []


def test_a_page_is_not_found_before_its_step_has_committed(pool, prefix):
    first = sequence(list(range(40)))
    compute(first, pool, prefix, tokens=20)
    assert len(first.pages) == 3
    assert len(prefix.take(sequence(list(range(40))))) == 1


@pytest.mark.parametrize("length", [16, 17, 32, 33])
def test_the_last_token_is_always_left_to_compute(pool, prefix, length):
    compute(sequence(list(range(64))), pool, prefix)
    taken = prefix.take(sequence(list(range(length))))
    assert len(taken) == (length - 1) // PAGE


def test_a_different_first_page_hides_an_equal_second_one(pool, prefix):
    compute(sequence([1] * 16 + [2] * 16 + [3]), pool, prefix)
    assert prefix.take(sequence([9] * 16 + [2] * 16 + [3])) == []


def test_tenants_with_different_salts_share_nothing(pool, prefix):
    compute(sequence(list(range(40)), salt="a"), pool, prefix)
    assert prefix.take(sequence(list(range(40)), salt="b")) == []
    assert len(prefix.take(sequence(list(range(40)), salt="a"))) == 2


def test_models_and_formats_share_nothing(pool):
    tokens = sequence(list(range(16)))
    keys = {PrefixCache(pool, PAGE, identity).key(sequence(list(range(16))), 0) for identity in (b"a", b"b", b"")}
    assert len(keys) == 3
    # Identity and salt cannot be shifted into each other.
    one = PrefixCache(pool, PAGE, b"a").key(sequence(list(range(16)), salt="bc"), 0)
    other = PrefixCache(pool, PAGE, b"ab").key(sequence(list(range(16)), salt="c"), 0)
    assert one != other
    assert len(PrefixCache(pool, PAGE, b"a").key(tokens, 0)) == 32


def test_keys_depend_on_all_tokens_before(pool, prefix):
    a, b = sequence([1] * 16 + [2] * 16), sequence([3] * 16 + [2] * 16)
    assert prefix.key(a, 1) != prefix.key(b, 1)


def test_disabled_finds_nothing_and_keeps_nothing(pool):
    prefix = PrefixCache(pool, PAGE, b"model", enabled=False)
    first = sequence(list(range(40)))
    compute(first, pool, prefix)
    assert first.sealed == 32
    assert prefix.take(sequence(list(range(40)))) == []
    for ref in first.pages:
        pool.release(ref)
    assert pool.free == pool.total


def test_what_a_running_sequence_will_publish_is_coming(pool, prefix):
    first = sequence(list(range(40)))
    prefix.announce(first)
    twin, stranger = sequence(list(range(40)), name="t"), sequence([7] * 40)
    assert prefix.is_coming(twin)
    assert not prefix.is_coming(stranger)
    assert not prefix.is_coming(sequence(list(range(16)))), "its only page must be computed anyway"
    compute(first, pool, prefix)
    assert not prefix.is_coming(twin)


def test_nobody_waits_for_one_of_lower_priority(pool, prefix):
    prefix.announce(sequence(list(range(40)), priority=5))
    assert not prefix.is_coming(sequence(list(range(40)), priority=1))
    assert prefix.is_coming(sequence(list(range(40)), priority=5))


def test_an_announcement_is_withdrawn_with_its_sequence(pool, prefix):
    first = sequence(list(range(40)))
    prefix.announce(first)
    prefix.withdraw(first)
    assert not prefix.is_coming(sequence(list(range(40))))


def test_forgotten_pages_are_not_found(pool, prefix):
    first = sequence(list(range(40)))
    compute(first, pool, prefix)
    prefix.forget(first)
    assert prefix.take(sequence(list(range(40)))) == []
    pool.check()
