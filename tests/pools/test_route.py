from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.pools.affinity import KnownPages, page_keys
from trimaran.pools.fair import FairQueue
from trimaran.pools.route import WorkerLoad, fits, pick, score

IDLE = WorkerLoad(up=True, requests=0, most_requests=4, tokens=0, most_tokens=1000)


def test_a_request_goes_where_least_is_to_be_done():
    busy = replace(IDLE, requests=2, tokens=300)
    assert pick([busy, IDLE], 100) == 1
    assert pick([busy, replace(IDLE, up=False)], 100) == 0
    assert pick([replace(IDLE, up=False)], 100) is None
    assert pick([], 100) is None


def test_what_is_cached_is_no_work():
    busier = replace(IDLE, requests=1, tokens=200, cached=500)
    assert pick([replace(IDLE, requests=1, tokens=100), busier], 600) == 1


@pytest.mark.parametrize(("more", "stays"), [(100, True), (900, False)])
def test_a_session_stays_unless_that_costs_much(more, stays):
    before = replace(IDLE, requests=1, tokens=more, session=True, most_tokens=2000)
    other = replace(IDLE, requests=1, most_tokens=2000)
    assert (pick([other, before], 100) == 1) is stays


def test_a_worker_takes_no_more_than_it_can_hold_but_any_request_alone():
    assert fits(IDLE, 10_000)
    assert not fits(replace(IDLE, requests=1, tokens=950), 100)
    assert fits(replace(IDLE, requests=1, tokens=950, cached=60), 100)
    assert not fits(replace(IDLE, requests=4), 1)


loads = st.builds(
    WorkerLoad,
    up=st.booleans(),
    requests=st.integers(0, 4),
    most_requests=st.just(4),
    tokens=st.integers(0, 5000),
    most_tokens=st.integers(1, 4000),
    cached=st.integers(0, 500),
    session=st.booleans(),
)


@given(st.lists(loads, max_size=6), st.integers(1, 4000))
def test_the_one_that_is_picked_is_able_and_none_is_better(workers, tokens):
    chosen = pick(workers, tokens)
    able = [worker for worker in workers if fits(worker, tokens)]
    if chosen is None:
        assert not able
    else:
        assert all(0 <= score(worker, tokens) <= score(workers[chosen], tokens) <= 1 for worker in able)


def test_prefixes_are_known_by_worker_and_tenant():
    prompt = list(range(50))
    keys = page_keys(prompt, 16, "")
    assert len(keys) == 3
    known = KnownPages(100)
    known.add(keys[:2], worker=1)
    assert known.leading(keys, 1) == 2
    assert known.leading(keys, 0) == 0
    assert known.leading(page_keys(prompt, 16, "tenant"), 1) == 0
    assert known.leading(page_keys([9, *prompt], 16, ""), 1) == 0
    known.forget(1)
    assert known.leading(keys, 1) == 0


def test_the_pages_used_last_are_known_longest():
    known = KnownPages(3)
    known.add([b"a", b"b"], 0)
    known.add([b"c"], 0)
    known.add([b"a"], 0)
    known.add([b"d"], 0)
    assert [known.leading([key], 0) for key in (b"a", b"b", b"c", b"d")] == [1, 0, 1, 1]


def order(queue: FairQueue[str]) -> str:
    found = ""
    while (item := queue.peek()) is not None:
        assert queue.remove(item)
        found += item
    return found


def test_a_tenant_with_many_requests_does_not_hold_up_another():
    queue: FairQueue[str] = FairQueue()
    for item in "abcdef":
        queue.push(item, "greedy", 100)
    queue.push("x", "modest", 100)
    queue.push("y", "modest", 100)
    assert order(queue) == "axbycdef"


def test_shares_are_of_tokens_and_priorities_go_first():
    queue: FairQueue[str] = FairQueue()
    for item in "ABC":
        queue.push(item, "long", 300)
    for item in "abcd":
        queue.push(item, "short", 100)
    queue.push("!", "long", 1, priority=-1)
    assert order(queue) == "!AabcBdC"


def test_an_item_can_leave_and_go_again():
    queue: FairQueue[str] = FairQueue()
    for item in "abc":
        queue.push(item, "t", 1)
    assert queue.remove("b")
    assert not queue.remove("b")
    assert queue.remove("a")
    queue.push_back("a")
    assert len(queue) == 2
    assert order(queue) == "ac"
    assert queue.peek() is None
