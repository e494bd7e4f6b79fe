"""The overlapped loop against the plain one, which is its oracle."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.messages import Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.engine.engine import Engine
from trimaran.kernels.null import NullExecutor, NullModel
from trimaran.kernels.step import StepInputs, StepOutputs

from .driving import PAGE, Answers, greedy, null_engine, run

CONTEXT = 256
POISON = 77  # a first token whose request fails when its sequence gets to 40 tokens


@dataclass(frozen=True)
class Arrival:
    at: int
    prompt: int
    family: int  # prompts of one family begin alike
    params: SamplingParams
    priority: int
    cancel_after: int | None
    poisoned: bool

    def submit(self, name: str) -> Submit:
        tokens = [POISON if self.poisoned else self.family] * 33 + list(range(90))
        return Submit(name, tokens[: self.prompt], self.params, priority=self.priority)


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 1.0]),
    seed=st.integers(0, 5),
    max_tokens=st.integers(1, 40),
    stop_token_ids=st.sampled_from([(), tuple(range(0, 512, 9))]),
    logprobs=st.sampled_from([None, None, 1]),
)
arrivals = st.builds(
    Arrival,
    at=st.integers(0, 20),
    prompt=st.integers(1, 120),
    family=st.integers(0, 2),
    params=params,
    priority=st.integers(0, 2),
    cancel_after=st.none() | st.integers(0, 12),
    poisoned=st.sampled_from([False] * 5 + [True]),
)


def make(*, overlap: bool, pages: int, seqs: int, rows: int, windows: tuple[int | None, ...]) -> Engine:
    """An engine whose executor checks that nothing under a running step changes, and fails poisoned requests."""
    engine = null_engine(
        context=CONTEXT,
        pages=pages,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(rows, seqs),
        overlap=overlap,
        null=NullModel(vocab=512, context=CONTEXT, eos_id=3, eos_one_in=40, windows=windows),
    )
    executor = engine._executor
    assert isinstance(executor, NullExecutor)
    groups, held = engine._cache.groups, {}
    start, finish = executor.start, executor.finish

    def tags(step: StepInputs) -> dict[tuple[int, int], int]:
        """Those of the pages that the step reads and writes, by group and page."""
        found = {}
        for number, (group, table) in enumerate(zip(groups, step.page_tables, strict=True)):
            for slot, context, rows in zip(step.slots, step.contexts, np.diff(step.starts), strict=True):
                for page in table[slot, group.first(int(context)) : -(-int(context + rows) // PAGE)]:
                    found[number, int(page)] = group.pool.tags[page]
        return found

    def checked_start(step: StepInputs) -> None:
        held["step"], held["tags"] = step, tags(step)
        held["arrays"] = [np.copy(getattr(step, name)) for name in ("tokens", "starts", "contexts", "slots")]
        start(step)

    def checked_finish() -> StepOutputs:
        step = held["step"]
        assert held["tags"] == tags(step), "a page changed hands under a step"
        assert all(held["tags"].values()), "a step ran on a free page"
        for name, before in zip(("tokens", "starts", "contexts", "slots"), held["arrays"], strict=True):
            assert np.array_equal(getattr(step, name), before), f"{name} changed under a step"
        outputs = finish()
        for row, i in enumerate(np.searchsorted(step.starts, step.logits_rows, side="right") - 1):
            first_page = step.page_tables[0][step.slots[i], 0]
            if executor._pages[0][first_page, 0] == POISON and step.contexts[i] >= 40:
                outputs.greedy[row] = -1
                if outputs.logits is not None:
                    outputs.logits[row, 0] = np.nan
        return outputs

    executor.start, executor.finish = checked_start, checked_finish  # type: ignore[method-assign]  # on this one
    return engine


def drive(engine: Engine, wanted: list[Arrival]) -> Answers:
    answers = Answers()
    for now in range(5000):
        for i, arrival in enumerate(wanted):
            if arrival.at == now:
                engine.submit(arrival.submit(str(i)))
            if arrival.cancel_after is not None and arrival.at + arrival.cancel_after == now:
                engine.cancel(str(i))
        answers.take(engine.step())
        if now > 40 and engine.idle:
            engine._cache.check()
            assert engine._cache.unused
            return answers
    raise AssertionError("starved")


@settings(max_examples=80, deadline=None)
@given(
    st.lists(arrivals, min_size=1, max_size=12),
    st.integers(16, 40),
    st.integers(1, 6),
    st.integers(6, 64),
    st.sampled_from([(None,), (None, 20), (None, 50, 7)]),
)
def test_both_loops_say_the_same_of_every_request(wanted, pages, seqs, rows, windows):
    plain, overlapped = (
        drive(make(overlap=overlap, pages=pages, seqs=seqs, rows=rows, windows=windows), wanted)
        for overlap in (False, True)
    )
    assert plain.keys() == overlapped.keys()
    for name, answer in plain.items():
        other = overlapped[name]
        if wanted[int(name)].cancel_after is None:
            assert (other.tokens, other.finish, other.stopped_by) == (answer.tokens, answer.finish, answer.stopped_by)
            assert (other.failure is None) == (answer.failure is None)
        else:  # a cancel may meet a request at another token, and even after its end
            both = min(len(other.ids), len(answer.ids))
            assert other.ids[:both] == answer.ids[:both]


def test_a_step_is_under_way_between_two_calls():
    engine = null_engine()
    engine.submit(Submit("a", [1], greedy(2)))
    assert engine.step() == []
    assert engine._running is not None
    [first] = engine.step()
    assert isinstance(first, Tokens)
    assert engine._running is not None
    [last] = engine.step()
    assert isinstance(last, Tokens)
    assert last.finish == "length"
    assert engine._running is None
    assert engine.idle


def test_a_request_that_arrives_under_a_step_joins_the_next():
    engine = null_engine()
    alone = run(null_engine(), Submit("b", [5] * 20, greedy(4)))["b"].ids
    engine.submit(Submit("a", [1], greedy(8)))
    engine.step()
    engine.submit(Submit("b", [5] * 20, greedy(4)))
    answers = Answers()
    answers.take(engine.step())
    assert list(answers) == ["a"]
    answers.take(engine.step())
    assert list(answers) == ["a", "b"]
    while not engine.idle:
        answers.take(engine.step())
    assert answers["b"].ids == alone


def test_closing_waits_for_a_step():
    engine = null_engine()
    engine.submit(Submit("a", [1], greedy(8)))
    engine.step()
    engine.close()
    engine.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_what_a_step_raises_reaches_the_caller(overlap):
    engine = null_engine(overlap=overlap)

    def broken() -> StepOutputs:
        raise MemoryError

    engine._executor.finish = broken  # type: ignore[method-assign]  # on this one
    engine.submit(Submit("a", [1], greedy(8)))
    with pytest.raises(MemoryError):
        run(engine)


def test_the_executors_share_of_a_step_is_counted():
    engine = null_engine(null=NullModel(vocab=512, context=CONTEXT, step_seconds=0.002))
    run(engine, Submit("a", [1], greedy(5)))
    stats = engine.stats()
    assert 5 * 0.002 <= stats.executor_seconds <= stats.step_seconds
