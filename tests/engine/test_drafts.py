"""Speculation: the same answers with drafts or without, whatever the drafts are, and nothing lost."""

from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import ConfigError
from trimaran.base.messages import Submit
from trimaran.base.sampling import SamplingParams
from trimaran.engine.config import EngineConfig
from trimaran.engine.drafts import REST, Drafter
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.kernels.null import NullModel

from .driving import Answers, greedy, null_engine, run
from .tiny_model import write_model


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


class Told(Drafter):
    """Drafts what it is told, right for some tokens."""

    def __init__(self, answer: list[int], right: list[int], prompt: int) -> None:
        super().__init__(8)
        self._answer, self._right_for, self._prompt = answer, right, prompt

    def draft(self, tokens: "array[int]", most: int) -> tuple[int, ...]:
        said = len(tokens) - self._prompt
        right = self._right_for[said % len(self._right_for)]
        draft = self._answer[said : said + right]
        return tuple([*draft, 3, 3, 3][: min(most, 8)])


def told(engine: Engine, requests: Sequence[Submit], answers: Answers, right: list[int]) -> Answers:
    for request in requests:
        engine.submit(request)
        made = engine._requests[request.id]
        if made.drafter is not None:
            made.drafter = Told(answers[request.id].ids, right, len(request.prompt))
    return run(engine)


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.0, 1.0]),
    seed=st.integers(0, 5),
    max_tokens=st.integers(1, 60),
    stop_token_ids=st.sampled_from([(), tuple(range(0, 512, 9))]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 90), params), min_size=1, max_size=6),
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.integers(18, 60),
    st.booleans(),
    st.sampled_from([(None,), (None, 32), (32,)]),
)
def test_answers_are_those_without_drafts(
    requests: list[tuple[int, SamplingParams]],
    right: list[int],
    pages: int,
    overlap: bool,
    windows: tuple[int | None, ...],
) -> None:
    submits = [Submit(str(number), [*range(length)], sampling) for number, (length, sampling) in enumerate(requests)]
    options = {"null": NullModel(vocab=512, context=256, windows=windows), "max_num_seqs": 8}
    plain = null_engine(**options)
    wanted = run(plain, *submits)
    plain.close()
    engine = null_engine(**options, pages=pages * len(windows), speculative_ngram=8, overlap=overlap)
    got = told(engine, submits, wanted, right)
    assert {name: (a.ids, a.finish, a.stopped_by) for name, a in got.items()} == {
        name: (a.ids, a.finish, a.stopped_by) for name, a in wanted.items()
    }
    engine.cache.check()
    assert engine.cache.unused
    engine.close()


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


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_a_model_says_the_same_bits(tmp_path: Path, executor: str) -> None:
    options = {"model": str(write_model(tmp_path / "tiny")), "executor": executor, "threads": 1, "max_num_seqs": 12}
    submits = [Submit(str(n), [5, 6, 7, 8] * (2 + n), greedy(70, ignore_eos=True)) for n in range(3)]
    plain, drafting = (load_engine(EngineConfig.from_json({**options, "speculative_ngram": most})) for most in (0, 6))
    wanted = run(plain, *submits)
    got = told(drafting, submits, wanted, [4, 0, 8])
    assert {name: a.ids for name, a in got.items()} == {name: a.ids for name, a in wanted.items()}
    assert drafting.stats().accepted_tokens > 0
    assert drafting.stats().steps < plain.stats().steps
    plain.close()
    drafting.close()


def test_only_greedy_requests_without_options_draft() -> None:
    engine = null_engine(speculative_ngram=4)
    for number, sampling in enumerate([greedy(5), SamplingParams(temperature=1.0), greedy(5, logprobs=0)]):
        engine.submit(Submit(str(number), [1], sampling))
    assert [request.drafter is not None for request in engine._requests.values()] == [True, False, False]
    run(engine)
    engine.close()


def test_drafts_have_a_most() -> None:
    with pytest.raises(ConfigError, match="speculative_ngram must be at most 16"):
        EngineConfig(speculative_ngram=17)
    with pytest.raises(ConfigError, match="speculative_ngram must be at least 0"):
        EngineConfig(speculative_ngram=-1)
