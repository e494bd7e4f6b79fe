from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import ContextLengthError, QueueFullError
from trimaran.base.messages import BACKGROUND
from trimaran.base.sampling import SamplingParams
from trimaran.engine.group import PageGroup
from trimaran.engine.pages import PageState
from trimaran.engine.plan import Chunk, StepPlan
from trimaran.engine.scheduler import BACKGROUND_ROWS, Scheduler
from trimaran.engine.sequence import Sequence
from trimaran.engine.window import most_pages

from .caching import PAGE, make_cache, make_limits


class Simulation:
    """A scheduler with an engine around it that only counts: every committed step is checked."""

    def __init__(
        self,
        *,
        pages: int = 32,
        context: int = 128,
        seqs: int = 4,
        rows: int = 32,
        waiting: int = 100,
        windowed: dict[int, int] | None = None,
    ) -> None:
        """``windowed`` has the pages of more groups, by their window."""
        windowed = windowed or {}
        self.limits = make_limits(context, seqs, rows, waiting)
        self.cache = make_cache([None, *windowed], [pages, *windowed.values()], self.limits)
        self.pool = self.cache.groups[0].pool
        self.scheduler = Scheduler(self.limits, self.cache)
        self.live: dict[str, Sequence] = {}
        self.arrivals = 0
        self.finished: list[str] = []

    def add(self, prompt: list[int], max_tokens: int = 8, *, priority: int = 0) -> Sequence:
        name = f"s{self.arrivals}"
        sampling = SamplingParams(max_tokens=max_tokens)
        sequence = Sequence(name, prompt, sampling, arrival=self.arrivals, priority=priority)
        self.arrivals += 1
        self.scheduler.add(sequence)
        self.live[name] = sequence
        return sequence

    def remove(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        del self.live[sequence.id]

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.check(plan)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.advance(chunk.rows)
            if sequence.computed >= sequence.due:
                self.cache.settle(sequence)
            self.check_windows(sequence)
            if chunk.samples:
                sequence.append((sequence.total * 7 + sequence.arrival) % 100)
                if sequence.output_length == sequence.sampling.max_tokens:
                    self.finished.append(sequence.id)
                    self.remove(sequence)
        self.cache.check()
        return plan

    def check(self, plan: StepPlan) -> None:
        assert plan.rows == sum(chunk.rows for chunk in plan.chunks) <= self.limits.max_num_batched_tokens
        assert len(plan.chunks) <= self.limits.max_num_seqs
        assert len({chunk.slot for chunk in plan.chunks}) == len(plan.chunks)
        assert plan.chunks or not self.live, "something waits and nothing runs"
        for chunk in plan.chunks:
            sequence = chunk.sequence
            assert chunk.first == sequence.computed
            assert chunk.rows > 0
            assert chunk.samples == (chunk.first + chunk.rows == sequence.total)
        for number, group in enumerate(self.cache.groups):
            self.check_pages(plan, number, group)

    def check_pages(self, plan: StepPlan, number: int, group: PageGroup) -> None:
        written: set[int] = set()
        for chunk in plan.chunks:
            held = chunk.sequence.pages[number]
            assert held.first <= group.first(chunk.first), "the first token's window is not there"
            assert held.end * PAGE >= chunk.first + chunk.rows
            for index, ref in enumerate(held.refs, held.first):
                assert group.pool.tags[ref.page] == ref.tag, "the page has changed hands"
                assert group.table[chunk.slot, index] == ref.page
            assert not group.table[chunk.slot, : held.first].any(), "a page that was given back can be read"
            assert not group.table[chunk.slot, held.end :].any()
            for page in self.writes(chunk, number):
                assert group.pool.state(page) is PageState.WRITING
                assert group.pool.references(page) == 1
                assert page not in written, "two sequences write to one page"
                written.add(page)

    def writes(self, chunk: Chunk, number: int) -> list[int]:
        held = chunk.sequence.pages[number]
        first, end = chunk.first // PAGE, -(-(chunk.first + chunk.rows) // PAGE)
        return [ref.page for ref in held.refs[first - held.first : end - held.first]]

    def check_windows(self, sequence: Sequence) -> None:
        """What the committed step has passed is given back, and no more is held than any step needs."""
        limits = self.limits
        for group, held in zip(self.cache.groups, sequence.pages, strict=True):
            assert held.first == group.first(sequence.computed)
            most = most_pages(limits.context, limits.max_num_batched_tokens, group.window, PAGE)
            assert len(held.refs) <= most


@dataclass(frozen=True)
class Arrival:
    at: int
    prompt: int
    family: int  # prompts of one family begin alike
    max_tokens: int
    priority: int
    cancel_after: int | None


arrivals = st.builds(
    Arrival,
    at=st.integers(0, 20),
    prompt=st.integers(1, 100),
    family=st.integers(0, 2),
    max_tokens=st.integers(1, 28),
    priority=st.sampled_from((0, 1, 2, BACKGROUND, BACKGROUND + 1)),
    cancel_after=st.none() | st.integers(0, 10),
)


@settings(max_examples=150)
@given(
    st.lists(arrivals, min_size=1, max_size=14),
    st.integers(8, 20),
    st.integers(1, 5),
    st.integers(5, 40),
    st.dictionaries(st.integers(1, 140), st.integers(0, 8), max_size=2),
)
def test_everything_that_is_not_cancelled_finishes(wanted, pages, seqs, rows, spare):
    windowed = {window: most_pages(128, rows, window, PAGE) + more for window, more in spare.items()}
    sim = Simulation(pages=pages, context=128, seqs=seqs, rows=rows, windowed=windowed)
    cancels: list[tuple[int, Sequence]] = []
    kept = set()
    for now in range(4000):
        for arrival in [a for a in wanted if a.at == now]:
            prompt = [arrival.family] * 48 + list(range(52))
            sequence = sim.add(prompt[: arrival.prompt], arrival.max_tokens, priority=arrival.priority)
            if arrival.cancel_after is None:
                kept.add(sequence.id)
            else:
                cancels.append((now + arrival.cancel_after, sequence))
        for when, sequence in cancels:
            if when == now and sequence.id in sim.live:
                sim.remove(sequence)
                assert not sequence.pages
        if now > 40 and not sim.live:
            break
        sim.step()
    assert not sim.live, "starved"
    assert kept <= set(sim.finished)
    assert sim.cache.unused


def test_decoding_sequences_go_before_prompts():
    sim = Simulation(rows=8)
    decoding = sim.add([1] * 4)
    sim.step()
    prompt = sim.add([2] * 50)
    plan = sim.step()
    assert [(c.sequence, c.rows) for c in plan.chunks] == [(decoding, 1), (prompt, 7)]


def test_a_prompt_is_cut_to_the_budget():
    sim = Simulation(rows=20)
    sim.add([1] * 50)
    assert [sim.step().rows for _ in range(4)] == [20, 20, 10, 1]


def test_priority_goes_before_arrival():
    sim = Simulation(seqs=1)
    later = sim.add([1] * 4, 2, priority=1)
    sooner = sim.add([2] * 4, 2, priority=0)
    assert sim.step().chunks[0].sequence is sooner
    sim.step()
    assert sim.step().chunks[0].sequence is later


def test_the_background_has_few_rows_while_there_is_somebody_else():
    sim = Simulation(seqs=24, rows=64, pages=200)
    lines = [sim.add([2 + number], 50, priority=BACKGROUND) for number in range(12)]
    prompt = sim.add([1] * 100, 20, priority=BACKGROUND + 1)
    plan = sim.step()
    assert [(c.sequence, c.rows) for c in plan.chunks] == [*((line, 1) for line in lines), (prompt, 52)]
    waited = sim.add([0] * 70, 3)
    most = 64 - BACKGROUND_ROWS
    for rows in (most, 70 - most, 1, 1):
        plan = sim.step()
        given = {c.sequence: c.rows for c in plan.chunks}
        assert given == {waited: rows, **dict.fromkeys(lines[:BACKGROUND_ROWS], 1)}
    assert waited.id in sim.finished
    assert [c.rows for c in sim.step().chunks] == [1] * 12 + [48], "and all there are when it is alone"


def test_a_higher_priority_takes_the_place_of_a_lower_one():
    sim = Simulation(seqs=1)
    low = sim.add([1] * 4, 20, priority=1)
    sim.step()
    high = sim.add([2] * 4, 2, priority=0)
    assert [c.sequence for c in sim.step().chunks] == [high]
    assert low.slot is None
    assert not low.pages
    assert sim.scheduler.preemptions == 1
    while sim.live:
        sim.step()
    assert sim.finished == [high.id, low.id]


def test_without_pages_the_last_in_rank_gives_way_and_the_first_never():
    sim = Simulation(pages=8, context=128, seqs=2, rows=64)
    first = sim.add([1] * 30, 90)
    second = sim.add([2] * 30, 90)
    while first.id in sim.live:
        sim.step()
        assert first.slot is not None or first.id in sim.finished
    assert sim.scheduler.preemptions >= 1
    while sim.live:
        sim.step()
    assert sim.finished == [first.id, second.id]


def test_a_preempted_sequence_finds_its_own_pages_again():
    sim = Simulation(seqs=1, rows=64)
    low = sim.add(list(range(40)), 20, priority=1)
    for _ in range(3):
        sim.step()
    sim.add([2] * 4, 1, priority=0)
    sim.step()
    plan = sim.step()
    assert plan.chunks[0].sequence is low
    assert plan.chunks[0].first == 32
    assert low.cached == 0, "its own pages are no cache hit"


def test_equal_prompts_that_arrive_together_are_computed_once():
    sim = Simulation(rows=64)
    first, second = sim.add(list(range(50))), sim.add(list(range(50)))
    assert [c.sequence for c in sim.step().chunks] == [first]
    plan = sim.step()
    assert [(c.sequence, c.first, c.rows) for c in plan.chunks] == [(first, 50, 1), (second, 48, 2)]


def test_one_that_waits_for_a_prefix_does_not_hold_back_others():
    sim = Simulation(rows=40)
    first, twin, other = sim.add(list(range(30))), sim.add(list(range(30))), sim.add([9] * 5)
    assert [c.sequence for c in sim.step().chunks] == [first, other]
    assert twin.slot is None


def test_an_admission_leaves_a_page_for_each_running_sequence():
    sim = Simulation(pages=8, context=128, rows=64)
    sim.add([1] * 40, 20)
    sim.step()
    tight = sim.add([2] * 80)
    sim.step()
    assert sim.pool.available == 5
    assert tight.slot is None, "it would take the page that the first one needs next"


def test_the_end_of_a_prefix_is_given_up_before_its_beginning():
    sim = Simulation(pages=8, context=128, rows=64)
    sim.add([1] * 64, 1)
    sim.step()
    sim.add([2] * 90, 1)
    while sim.live:
        sim.step()
    assert sim.pool.cached == 8 - 1
    again = sim.add([1] * 64, 1)
    sim.step()
    assert again.cached == 2 * PAGE


def test_what_can_never_run_is_refused():
    sim = Simulation(context=128)
    with pytest.raises(ContextLengthError, match="128 tokens") as failure:
        sim.add([1] * 128)
    assert failure.value.param == "prompt"
    with pytest.raises(ContextLengthError, match="at most 28") as failure:
        sim.add([1] * 100, 29)
    assert failure.value.param == "max_tokens"
    sim.add([1] * 100, 28)


def test_the_queue_is_bounded():
    sim = Simulation(waiting=2)
    sim.add([1])
    sim.add([1])
    with pytest.raises(QueueFullError) as failure:
        sim.add([1])
    assert failure.value.retry_after > 0


def test_a_long_prompt_asks_for_no_more_windowed_pages_than_a_step_needs():
    sim = Simulation(pages=125, context=2000, rows=64, windowed={100: 12})  # 100 + 64 tokens
    prompt = sim.add([1] * 1990)
    while sim.live:
        sim.step()
    assert sim.finished == [prompt.id]
    assert sim.scheduler.preemptions == 0


@pytest.mark.parametrize("tight", [0, 1])
def test_when_either_group_runs_out_the_last_in_rank_gives_way(tight):
    pages = [64, 64]
    pages[tight] = 8
    sim = Simulation(pages=pages[0], context=128, seqs=2, rows=32, windowed={90: pages[1]})
    first, second = sim.add([1] * 30, 90), sim.add([2] * 30, 90)
    while first.id in sim.live:
        sim.step()
        assert first.slot is not None or first.id in sim.finished
    assert sim.scheduler.preemptions >= 1
    while sim.live:
        sim.step()
    assert sim.finished == [first.id, second.id]


def test_removing_a_sequence_frees_its_pages_at_once():
    sim = Simulation(rows=20)
    sequence = sim.add([1] * 50)
    sim.step()
    sim.remove(sequence)
    assert sim.pool.available == sim.pool.total
    assert not sim.step().chunks
