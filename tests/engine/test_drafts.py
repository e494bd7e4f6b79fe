"""Drafts: what they are, what they save, and what they may take. Answers are those without: test_draft_answers.py."""

from array import array
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.errors import ConfigError
from trimaran.base.messages import Submit
from trimaran.base.sampling import SamplingParams
from trimaran.engine.config import EngineConfig
from trimaran.engine.drafts import LONGEST_REST, REST, Drafter, least_right

from .drafting import told
from .driving import greedy, null_engine, run


def drafted(drafter: Drafter, text: Sequence[int], most: int = 8, least: float = 0.1) -> list[int]:
    return list(drafter.draft(array("i", text), most, least))


def trusted(most: int) -> Drafter:
    """One whose drafts of all kinds were right."""
    drafter = Drafter(most)
    for alike in (3, 4, 8):
        text = [*range(50, 50 + alike), 1, 2, 3, 4, 5, 6, 7, 8, 40 + alike, *range(50, 50 + alike)]
        other = Drafter(most)
        assert drafted(other, text) != []
        for _ in range(4):
            other.judge(most, most)
        drafter._trusts[other._last] = other._trusts[other._last]
    return drafter


def test_what_followed_before_is_drafted() -> None:
    assert drafted(trusted(4), [1, 2, 3, 4, 5, 9, 1, 2, 3]) == [4, 5, 9, 1]
    assert drafted(trusted(4), [1, 2, 3, 4, 5, 9, 1, 2, 3], most=2) == [4, 5]
    assert drafted(trusted(4), [7, 2, 3, 4, 9, 1, 2, 3]) == []  # two tokens say too little
    assert drafted(trusted(4), [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3]) == [5, 9, 1, 2]  # the last time counts
    assert drafted(trusted(4), [1, 2, 3, 4, 5]) == []
    assert drafted(trusted(4), [1]) == drafted(trusted(4), [1, 1, 1]) == []
    assert drafted(trusted(4), [1, 1, 1, 1]) == [1]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=90), st.lists(st.integers(1, 60), max_size=20))
def test_it_does_not_matter_when_tokens_are_seen(text: list[int], steps: list[int]) -> None:
    at_once, bit_by_bit = trusted(8), trusted(8)
    end = 0
    for step in steps:
        end += step
        drafted(bit_by_bit, text[:end])
    assert drafted(bit_by_bit, text) == drafted(at_once, text)


def test_the_more_tokens_are_alike_the_longer_the_first_draft() -> None:
    text = [*range(1, 30), 90, 91]
    widths = [len(drafted(Drafter(8), [*text, *range(10, 10 + alike)], least=least_right(1))) for alike in range(3, 12)]
    assert widths == sorted(widths)
    assert widths[0] >= 1
    assert widths[-1] == 8


def test_drafts_get_longer_while_they_are_right_and_shorter_when_not() -> None:
    drafter, text = Drafter(8), [1, 2, 3, *range(10, 20), 1, 2, 3]
    widths = [len(drafted(drafter, text))]
    for _ in range(4):
        drafter.judge(widths[-1], widths[-1])
        widths.append(len(drafted(drafter, text)))
    assert widths == sorted(widths)
    assert widths[-1] == 8
    for _ in range(20):
        drafter.judge(8, 2)
        widths.append(len(drafted(drafter, text)))
    assert widths[5:] == sorted(widths[5:], reverse=True)
    assert 1 <= widths[-1] <= 6


def test_the_more_share_a_step_the_more_must_be_right() -> None:
    assert least_right(1) == pytest.approx(1 / 3)
    drafter, text = Drafter(8), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    drafter.judge(6, 3)
    widths = [len(drafted(drafter, text, least=least_right(sequences))) for sequences in (1, 4, 16, 64)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1] == 0


def test_a_sequence_whose_drafts_fail_rests_each_time_longer() -> None:
    drafter, text = Drafter(8), [8, 1, 2, 3]
    ends = []
    for token in range(10, 10 + LONGEST_REST):
        if drafted(drafter, text):
            for _ in range(6):
                drafter.judge(1, 0)
            ends.append(len(text))
        text += [token, 1, 2, 3]
    rests = [after - before for before, after in pairwise(ends)]
    assert rests == sorted(rests)
    assert rests[0] in range(REST, REST + 10)
    assert rests[-1] in range(LONGEST_REST, LONGEST_REST + 10)
    text += [*range(50, 50 + LONGEST_REST), 1, 2, 3]
    assert drafted(drafter, text) != []
    drafter.judge(1, 1)
    for _ in range(12):
        drafter.judge(1, 0)
    assert drafted(drafter, text) == []
    assert drafted(drafter, [*text, *range(50, 50 + REST), 1, 2, 3]) != [], "after one that was right it starts anew"


def test_right_drafts_save_steps_and_are_counted() -> None:
    submit = Submit("a", [1, 2, 3], greedy(64))
    plain = null_engine()
    wanted = run(plain, submit)
    plain.close()
    engine = null_engine(speculative_ngram=8)
    assert told(engine, [submit], wanted, [8])["a"].ids == wanted["a"].ids
    stats = engine.stats()
    assert stats.generated_tokens == 64
    assert stats.steps <= 10
    assert stats.accepted_tokens >= 50
    assert stats.drafted_tokens >= stats.accepted_tokens
    engine.close()


def test_drafts_leave_rows_to_others() -> None:
    submits = [Submit(str(number), [number, 2, 3], greedy(30)) for number in range(4)]
    plain = null_engine(max_num_seqs=4)
    wanted = run(plain, *submits)
    plain.close()
    engine = null_engine(max_num_seqs=4, max_num_batched_tokens=4, speculative_ngram=8)
    got = told(engine, submits, wanted, [8])
    assert {name: a.ids for name, a in got.items()} == {name: a.ids for name, a in wanted.items()}
    engine.close()


def test_requests_of_all_kinds_draft() -> None:
    engine = null_engine(speculative_ngram=4)
    for number, sampling in enumerate([greedy(5), SamplingParams(temperature=1.0), greedy(5, logprobs=0)]):
        engine.submit(Submit(str(number), [1], sampling))
    assert all(request.drafter is not None for request in engine._requests.values())
    run(engine)
    engine.close()
    engine = null_engine()
    engine.submit(Submit("a", [1], greedy(5)))
    assert engine._requests["a"].drafter is None
    run(engine)
    engine.close()


def test_drafts_have_a_most() -> None:
    with pytest.raises(ConfigError, match="speculative_ngram must be at most 16"):
        EngineConfig(speculative_ngram=17)
    with pytest.raises(ConfigError, match="speculative_ngram must be at least 0"):
        EngineConfig(speculative_ngram=-1)
