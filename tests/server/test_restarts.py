from hypothesis import given
from hypothesis import strategies as st

from trimaran.server.restarts import MOST_PAUSE, RestartPolicy, Restarts


def test_pauses_double_until_the_row_is_full():
    row = Restarts(RestartPolicy(limit=7, stable=60))
    assert [row.pause_after(1) for _ in range(9)] == [1, 2, 4, 8, 16, MOST_PAUSE, MOST_PAUSE, None, None]


def test_without_a_limit_it_never_gives_up():
    row = Restarts(RestartPolicy(limit=None))
    assert [row.pause_after(0) for _ in range(2000)][-1] == MOST_PAUSE


def test_a_long_life_begins_a_new_row():
    row = Restarts(RestartPolicy(limit=2, stable=60))
    assert [row.pause_after(lived) for lived in (0, 0, 60, 59, 100)] == [1, 2, 1, 2, 1]


def test_never():
    assert Restarts(RestartPolicy(when="never")).pause_after(1e9) is None


@given(st.lists(st.floats(0, 200)), st.integers(1, 9))
def test_it_gives_up_exactly_after_so_many_short_lives_in_a_row(lives, limit):
    row, short = Restarts(RestartPolicy(limit=limit, stable=60)), 0
    for lived in lives:
        short = 0 if lived >= 60 else short
        pause = row.pause_after(lived)
        assert (pause is None) == (short == limit)
        if pause is None:
            return
        assert 1 <= pause <= MOST_PAUSE
        short += 1
