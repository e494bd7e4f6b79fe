from trimaran.base.fanout import fan_out
from trimaran.base.sampling import SamplingParams


def test_each_choice_has_the_next_seed():
    parts = fan_out(SamplingParams(n=3, seed=41, temperature=0.5, stop=("x",), max_tokens=9))
    assert [part.seed for part in parts] == [41, 42, 43]
    assert {(part.n, part.temperature, part.max_tokens, part.stop) for part in parts} == {(1, 0.5, 9, ())}


def test_without_a_seed_there_is_none():
    assert [part.seed for part in fan_out(SamplingParams(n=2))] == [None, None]


def test_after_the_largest_seed_comes_the_smallest():
    assert [part.seed for part in fan_out(SamplingParams(n=2, seed=2**63 - 1))] == [2**63 - 1, -(2**63)]
