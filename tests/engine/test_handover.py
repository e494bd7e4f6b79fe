"""No copy of pages is late: it is refused before a byte moves, or the pages have stayed where they were."""

from random import Random

import numpy as np
import pytest

from trimaran.base.errors import PageIntegrityError, TransferError
from trimaran.base.formats import KVFormat
from trimaran.base.messages import Submit
from trimaran.base.sampling import SamplingParams
from trimaran.engine.engine import Engine
from trimaran.engine.pages import PageRef
from trimaran.kernels.null import NullModel
from trimaran.kernels.step import StepInputs, StepOutputs

from .driving import Answers, greedy, null_engine, run

BF16 = KVFormat.BF16


def started(engine: Engine, name: str = "a", prompt: int = 40) -> tuple[list[PageRef], int]:
    """A request of which one page is not full: its pages and its number."""
    engine.submit(Submit(name, [5] * prompt, greedy(40)))
    engine.step()
    engine.step()
    sequence = next(each for each in engine.sequences if each.id == name)
    return list(sequence.pages[0].refs), sequence.owner


def contents(engine: Engine) -> np.ndarray:
    pages = np.arange(1, engine.executor.num_pages[0], dtype=np.int32)
    return engine.executor.export_pages(0, pages, BF16)


@pytest.fixture
def engine():
    with_steps_that_wait = null_engine(overlap=False)
    yield with_steps_that_wait
    with_steps_that_wait.close()


def test_pages_under_a_lease_are_given_and_taken(engine):
    refs, owner = started(engine)
    engine.leases.open("t", [refs], 60)
    data = engine.handover.give("t", 0, refs, BF16)
    assert (data == engine.executor.export_pages(0, np.array([r.page for r in refs], np.int32), BF16)).all()
    engine.handover.take("t", 0, refs[-1:], owner, data[:1])
    assert (engine.handover.give("t", 0, refs[-1:], BF16) == data[:1]).all()


@pytest.mark.parametrize("how", ["closed", "expired", "never opened"])
def test_after_the_lease_nothing_is_read_or_written(engine, how):
    """Though the sequence still has the pages: the word of a lease is good for its time alone."""
    refs, owner = started(engine)
    if how != "never opened":
        engine.leases.open("t", [refs], 0.0 if how == "expired" else 60)
    data = engine.executor.export_pages(0, np.array([refs[-1].page], np.int32), BF16)
    if how == "closed":
        engine.leases.close("t")
    engine.reap(float("inf") if how == "expired" else 0.0)
    before = contents(engine)
    with pytest.raises(TransferError, match="'t' is open"):
        engine.handover.take("t", 0, refs[-1:], owner, ~data)
    with pytest.raises(TransferError, match="'t' is open"):
        engine.handover.give("t", 0, refs, BF16)
    assert (contents(engine) == before).all()


def test_a_cancelled_receiver_s_pages_take_what_is_under_way_and_nobody_gets_them_meanwhile(engine):
    refs, owner = started(engine)
    data = engine.executor.export_pages(0, np.array([refs[-1].page], np.int32), BF16)
    engine.leases.open("t", [refs], 60)
    engine.cancel("a")
    others, _ = started(engine, "b", prompt=100)
    assert not {ref.page for ref in refs[-1:]} & {ref.page for ref in others}
    engine.handover.take("t", 0, refs[-1:], owner, ~data)
    engine.leases.close("t")
    lone = run(null_engine(), Submit("b", [5] * 100, greedy(40)))["b"].ids
    answers = Answers()
    while not engine.idle:
        answers.take(engine.step())
    assert answers["b"].ids == lone[-len(answers["b"].ids) :]


def test_pages_beside_those_of_the_lease_are_refused(engine):
    refs, owner = started(engine)
    engine.leases.open("t", [refs[:1]], 60)
    with pytest.raises(TransferError, match="not under the lease"):
        engine.handover.take("t", 0, refs[-1:], owner, np.zeros((1, 1), np.uint8))
    with pytest.raises(TransferError, match="cache group 1"):
        engine.handover.give("t", 1, refs[-1:], BF16)


@pytest.mark.parametrize("what", ["freed", "reallocated", "another's", "sealed", "flipped tag"])
def test_a_page_that_is_not_the_transfers_any_more_is_a_fault(engine, what, caplog):
    """What no late copy can reach, unless our own books are wrong."""
    refs, owner = started(engine)
    pool, last = engine.cache.groups[0].pool, refs[-1]
    data = engine.executor.export_pages(0, np.array([last.page], np.int32), BF16)
    engine.leases.open("t", [refs], 60)
    match what:
        case "freed" | "reallocated":
            pool.release(last)
            pool.release(last)
            if what == "reallocated":
                assert pool.allocate("other", last.page).page == last.page
        case "another's":
            owner += 1
        case "sealed":
            pool.seal(last, b"key")
        case "flipped tag":
            pool.tags[last.page] ^= 1
    before = contents(engine)
    with pytest.raises(PageIntegrityError, match=f"page {last.page} "):
        engine.handover.take("t", 0, [last], owner, ~data)
    assert (contents(engine) == before).all()
    assert "holder=t" in caplog.text
    assert engine.stats().page_faults == 1


class Watched:
    """Notes which pages a step was started with, and holds the engine to keeping them until it has ended."""

    def __init__(self, engine: Engine) -> None:
        executor, self.engine, self.steps = engine.executor, engine, 0
        self.start, self.finish, self.running = executor.start, executor.finish, set()
        executor.start, executor.finish = self.started, self.finished

    def pages(self, step: StepInputs) -> set[tuple[int, int, int, int]]:
        found = set()
        for number, group in enumerate(self.engine.cache.groups):
            for slot in step.slots:
                for index in np.flatnonzero(step.page_tables[number][slot]):
                    page = int(step.page_tables[number][slot, index])
                    found.add((number, int(slot), page, int(group.pool.tags[page])))
        return found

    def started(self, step: StepInputs) -> None:
        self.step, self.running = step, self.pages(step)
        self.start(step)

    def finished(self) -> StepOutputs:
        assert self.pages(self.step) == self.running, "a page changed hands under a step"
        self.steps += 1
        return self.finish()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_no_page_changes_hands_while_a_step_reads_or_writes_it(overlap, seed):
    """Whatever is cancelled, preempted, leased and reaped around it."""
    random = Random(seed)
    engine = null_engine(overlap=overlap, pages=40, null=NullModel(windows=(None, 48), context=256), max_num_seqs=8)
    watched, names, open_ids = Watched(engine), 0, set()
    prompts = [[random.randrange(512) for _ in range(120)] for _ in range(3)]
    for _ in range(400):
        act = random.random()
        if act < 0.4 and len(open_ids) < 12:
            name, names = str(names), names + 1
            prompt = random.choice(prompts)[: random.randrange(1, 120)]
            engine.submit(Submit(name, prompt, SamplingParams(temperature=0, max_tokens=20), random.randrange(3)))
            open_ids.add(name)
        elif act < 0.5 and open_ids:
            engine.cancel(random.choice(sorted(open_ids)))  # also while a step runs
        elif act < 0.6:
            engine.finish()
            if running := [sequence for sequence in engine.sequences if sequence.slot is not None]:
                refs = [list(held.refs) for held in random.choice(running).pages]
                engine.leases.open(f"lease-{names}-{random.random()}", refs, 0.0)
        elif act < 0.8:
            engine.finish()
            engine.reap(float("inf"))
        else:
            for message in engine.step():
                if getattr(message, "finish", None):
                    open_ids.discard(message.id)
    engine.cancel_all()
    engine.step()
    engine.reap(float("inf"))
    engine.cache.check()
    assert engine.cache.unused
    assert watched.steps > 30
    assert engine.stats().page_faults == 0
    engine.close()
