from itertools import pairwise

import pytest

from trimaran.base.errors import ConfigError
from trimaran.bench.arrivals import Job, poisson, read_trace

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_poisson_times_have_the_rate_and_the_spread_of_their_kind():
    jobs = poisson([Job(8, 4)] * 4001, rate=50, seed=1)
    gaps = [after.due - before.due for before, after in pairwise(jobs)]
    mean = sum(gaps) / len(gaps)
    assert jobs[0] == Job(8, 4, due=0)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)  # exponential


def test_a_seed_fixes_the_times():
    jobs = [Job(8, 4)] * 20
    assert poisson(jobs, 5, seed=3) == poisson(jobs, 5, seed=3) != poisson(jobs, 5, seed=4)


def test_a_trace_starts_at_once_and_is_scaled(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        HEAD + "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:05.9799600,7,0\n2023-11-16 18:18:00.0000000,1,1\n"
    )
    first, second = read_trace(path, limit=2, time_scale=0.5)
    assert first == Job(374, 44, due=0)
    assert (second.prompt, second.output, second.due) == (7, 1, pytest.approx(1.0))


def test_times_may_be_seconds_in_any_order(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + "12,3,4\n10.5,1,2\n")
    assert read_trace(path, limit=9) == [Job(1, 2, due=0), Job(3, 4, due=1.5)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("TIMESTAMP,ContextTokens\n1,2\n", "no column GeneratedTokens"),
        ("", "no column TIMESTAMP"),
        (HEAD, "holds no request"),
        (HEAD + "1,2,3\nsoon,2,3\n", "line 3 of"),
        (HEAD + "1,2\n", "line 2 of"),
        (HEAD + "nan,2,3\n", "line 2 of"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, words):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_trace(path, limit=10)


def test_a_trace_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", limit=1)
