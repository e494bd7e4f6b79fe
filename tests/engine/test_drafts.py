"""Drafts: what they are, what they save, and what they may take. Answers are those without: test_draft_answers.py."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.errors import ConfigError
from trimaran.base.messages import Submit
from trimaran.base.sampling import SamplingParams
from trimaran.engine.config import EngineConfig
from trimaran.engine.drafts import REST, Drafter

from .drafting import told
from .driving import greedy, null_engine, run


def drafted(drafter: Drafter, text: Sequence[int], most: int = 8) -> list[int]:
    return list(drafter.draft(array("i", text), most))


def test_what_followed_before_is_drafted() -> None:
    assert drafted(Drafter(4), [1, 2, 3, 4, 5, 9, 1, 2, 3]) == [4, 5, 9, 1]
    assert drafted(Drafter(4), [1, 2, 3, 4, 5, 9, 1, 2, 3], most=2) == [4, 5]
    assert drafted(Drafter(4), [7, 2, 3, 4, 9, 1, 2, 3]) == [4, 9, 1, 2]  # two tokens are enough
    assert drafted(Drafter(4), [1, 2, 3, 4, 8, 2, 3, 5, 9, 1, 2, 3]) == [4, 8, 2, 3]  # three say more than two
    assert drafted(Drafter(4), [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3]) == [5, 9, 1, 2]  # the last time counts
    assert drafted(Drafter(4), [1, 2, 3, 4, 5]) == []
    assert drafted(Drafter(4), [1]) == drafted(Drafter(4), [1, 1]) == []
    assert drafted(Drafter(4), [1, 1, 1, 1]) == [1]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 59))
def test_it_does_not_matter_when_tokens_are_seen(text: list[int], cut: int) -> None:
    at_once, bit_by_bit = Drafter(8), Drafter(8)
    for end in range(min(cut, len(text)), len(text)):
        drafted(bit_by_bit, text[:end])
    assert drafted(bit_by_bit, text) == drafted(at_once, text)


def test_drafts_that_fail_get_shorter_and_rest() -> None:
    drafter, text = Drafter(8), [1, 2, 3, *range(10, 20), 1, 2, 3]
    assert len(drafted(drafter, text)) == 8
    drafter.judge(8, 2, len(text))
    assert len(drafted(drafter, text)) == 3
    drafter.judge(3, 3, len(text))
    assert len(drafted(drafter, text)) == 6
    for _ in range(8):
        drafter.judge(6, 0, len(text))
    assert drafted(drafter, text) == []
    assert drafted(drafter, [*text, *range(50, 50 + REST), 1, 2, 3]) != []


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
