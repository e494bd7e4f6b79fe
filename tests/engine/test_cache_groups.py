"""Engines with several cache groups and windows, under random load, against each request alone.

The null executor hashes what it reads through the page tables, so a page that was given back too early, mixed up or
found under a wrong prefix changes a token; and after each step the pages are read here too, for every row.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trimaran.base.messages import Submit
from trimaran.engine.engine import Engine
from trimaran.engine.window import most_pages
from trimaran.kernels.null import NullExecutor, NullModel
from trimaran.kernels.step import StepInputs, StepOutputs

from .driving import Answers, greedy, null_engine, run

CONTEXT = 256


@dataclass(frozen=True)
class Arrival:
    at: int
    shared: int  # tokens of a beginning that all of the family have
    own: int
    family: int
    max_tokens: int
    priority: int
    cancel_after: int | None

    def prompt(self, number: int) -> tuple[int, ...]:
        beginning = [(self.family * 31 + i * i) % 200 for i in range(self.shared)]
        return (*beginning, *[(200 + number * 17 + i) % 512 for i in range(self.own)])


@dataclass(frozen=True)
class Setup:
    windows: tuple[int | None, ...]
    page_size: int
    memory: float  # 0: as much as one sequence needs at once; 1: what four can use
    seqs: int
    rows: int
    prefix_caching: bool
    overlap: bool

    def engine(self) -> Engine:
        whole = -(-CONTEXT // self.page_size)
        least = max(most_pages(CONTEXT, max(self.rows, self.seqs), window, self.page_size) for window in self.windows)
        engine = null_engine(
            null=NullModel(vocab=512, context=CONTEXT, windows=self.windows),
            pages=int(least + self.memory * 4 * whole),
            page_size=self.page_size,
            max_num_seqs=self.seqs,
            max_num_batched_tokens=max(self.rows, self.seqs),
            prefix_caching=self.prefix_caching,
            overlap=self.overlap,
        )
        watch(engine)
        return engine


arrivals = st.builds(
    Arrival,
    at=st.integers(0, 25),
    shared=st.integers(0, 150),
    own=st.integers(1, 60),
    family=st.integers(0, 1),
    max_tokens=st.integers(1, 40),
    priority=st.integers(0, 2),
    cancel_after=st.none() | st.none() | st.integers(0, 25),
)
windows = st.none() | st.integers(1, 100) | st.sampled_from([16, 17, 32, 33, 300])
setups = st.builds(
    Setup,
    windows=st.lists(windows, min_size=1, max_size=3).map(tuple),
    page_size=st.sampled_from([16, 16, 48]),
    memory=st.just(0.0) | st.floats(0, 1),
    seqs=st.integers(1, 6),
    rows=st.integers(1, 90),
    prefix_caching=st.booleans(),
    overlap=st.booleans(),
)


def watch(engine: Engine) -> None:
    """After each step, reads what every row of it was to see; and counts pages."""
    executor, groups, size = engine._executor, engine._cache.groups, engine.info.page_size
    assert isinstance(executor, NullExecutor)
    begin, run_step, planned = engine.runner.start, executor.run, []

    def start(plan, **options) -> None:
        planned[:] = plan.chunks
        begin(plan, **options)

    def checked_run(step: StepInputs) -> StepOutputs:
        outputs = run_step(step)
        for chunk in planned:
            tokens = np.array(chunk.sequence.tokens)
            for group, table, memory in zip(groups, step.page_tables, executor._pages, strict=True):
                first, end = max(0, chunk.first + 1 - (group.window or CONTEXT)), chunk.first + chunk.rows
                positions = np.arange(first, end)
                pages = table[chunk.slot, positions // size]
                np.testing.assert_array_equal(memory[pages, positions % size], tokens[first:end])
                assert not table[chunk.slot, : first // size].any(), "what was given back can still be found"
                assert np.count_nonzero(table[chunk.slot]) <= group.most
        return outputs

    engine.runner.start, executor.run = start, checked_run  # type: ignore[method-assign]  # on these ones


@cache
def alone(prompt: tuple[int, ...], max_tokens: int, windows: tuple[int | None, ...]) -> list[int]:
    engine = null_engine(null=NullModel(vocab=512, context=CONTEXT, windows=windows), prefix_caching=False)
    return run(engine, Submit("alone", prompt, greedy(max_tokens)))["alone"].ids


def drive(engine: Engine, wanted: Items[Arrival]) -> Answers:
    answers = Answers()
    for now in range(5000):
        for number, arrival in enumerate(wanted):
            if arrival.at == now:
                prompt = arrival.prompt(number)
                engine.submit(Submit(str(number), prompt, greedy(arrival.max_tokens), priority=arrival.priority))
            if arrival.cancel_after is not None and arrival.at + arrival.cancel_after == now:
                engine.cancel(str(number))
        answers.take(engine.step())
        if now > 50 and engine.idle:
            return answers
    raise AssertionError(f"starved: {engine.stats()}")


SMALL = Setup((None, 40), 16, 0.0, 4, 30, prefix_caching=True, overlap=True)
TWO_TURNS = [Arrival(0, 100, 1, 0, 30, 0, None), Arrival(15, 100, 30, 0, 20, 0, None)]


@settings(max_examples=80, deadline=None)
@given(setups, st.lists(arrivals, min_size=1, max_size=10))
@example(SMALL, TWO_TURNS)
def test_nothing_that_a_window_needs_is_given_back_and_everything_else_is(setup, wanted):
    engine = setup.engine()
    answers = drive(engine, wanted)
    for number, arrival in enumerate(wanted):
        ids = alone(arrival.prompt(number), arrival.max_tokens, setup.windows)
        got = answers[str(number)]
        if got.finish == "cancelled":
            assert got.ids == ids[: len(got.ids)]
        else:
            assert (got.ids, got.finish) == (ids, "length")
    engine._cache.check()
    assert engine._cache.unused


@pytest.mark.parametrize("windows", [(None,), (40,), (None, 40), (None, 40, 100)])
def test_preempted_sequences_resume_from_what_is_cached(windows):
    setup = Setup(windows, 16, 0.0, 4, 64, prefix_caching=True, overlap=True)
    engine = setup.engine()
    wanted = [Arrival(20 * i, 0, 100 + i, 0, 120, 3 - i, None) for i in range(4)]
    answers = drive(engine, wanted)
    assert engine.stats().preemptions > 0
    for number, arrival in enumerate(wanted):
        assert answers[str(number)].ids == alone(arrival.prompt(number), 120, windows)


@pytest.mark.parametrize("windows", [(40,), (None, 40), (None, 40, 100)])
def test_the_next_turn_finds_the_windows_of_the_last_one(windows):
    engine = null_engine(null=NullModel(vocab=512, context=CONTEXT, windows=windows))
    prompt = list(range(130))
    first = run(engine, Submit("a", prompt, greedy(40)))["a"]
    turn = [*prompt, *first.ids, *range(20)]
    second = run(engine, Submit("b", turn, greedy(20)))["b"]
    assert second.cached == 169 // 16 * 16, "all that was computed, in whole pages"
    assert second.ids == alone(tuple(turn), 20, windows)
    assert run(engine, Submit("c", prompt, greedy(40)))["c"].cached == 128, "earlier windows are there until taken"


def test_many_short_sequences_run_together_where_only_few_long_ones_would_fit():
    engine = null_engine(null=NullModel(vocab=512, context=4096, windows=(None, 64)), pages=400, max_num_seqs=32)
    for i in range(32):
        engine.submit(Submit(str(i), [i] * 16, greedy(20)))
    engine.step()
    assert engine.stats().running == 32
    run(engine)
    assert engine.stats().preemptions == 0
