from hypothesis import given
from hypothesis import strategies as st

from trimaran.server.rates import Bucket


def test_all_at_once_then_steadily():
    bucket = Bucket(60, now=0)
    for _ in range(60):
        assert bucket.wait(1, now=0) == 0
        bucket.take(1, now=0)
    assert bucket.wait(1, now=0) == 1
    assert bucket.wait(1, now=0.5) == 0.5
    assert bucket.wait(1, now=1) == 0
    assert bucket.wait(30, now=1) == 29


def test_what_is_owed_has_to_come_first():
    bucket = Bucket(60, now=0)
    bucket.take(600, now=0)
    assert bucket.wait(1, now=0) == 541
    assert bucket.wait(1, now=541) == 0


def test_more_than_there_ever_is_takes_all():
    assert Bucket(60, now=0).wait(1000, now=0) == 0


def test_a_clock_that_goes_back_gives_nothing():
    bucket = Bucket(60, now=10)
    bucket.take(60, now=10)
    assert bucket.wait(1, now=0) == 1
    assert bucket.wait(1, now=10) == 1


@given(st.integers(1, 1000), st.lists(st.floats(0, 5), max_size=60))
def test_no_minute_has_more_than_twice_its_share(per_minute, steps):
    """A full bucket may go at once, and what comes in meanwhile too."""
    bucket, now, taken = Bucket(per_minute, now=0), 0.0, 0
    for step in steps:
        now += step
        if now > 60:
            break
        while bucket.wait(1, now) == 0:
            bucket.take(1, now)
            taken += 1
    assert taken <= 2 * per_minute + 1
