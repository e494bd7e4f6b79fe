import numpy as np

from trimaran.base.sampling import SamplingParams
from trimaran.engine.pages import PageRef
from trimaran.engine.plan import Chunk, StepPlan
from trimaran.engine.runner import Runner
from trimaran.engine.sequence import Sequence
from trimaran.kernels.step import StepInputs


class Recorder:
    """An executor that keeps what it was given."""

    page_size = 16

    def __init__(self) -> None:
        self.steps: list[dict] = []

    def start(self, step: StepInputs) -> None:
        self.steps.append({name: np.copy(getattr(step, name)) for name in step.__dataclass_fields__})


def sequence(tokens: list[int], pages: list[int]) -> Sequence:
    made = Sequence("s", tokens, SamplingParams())
    made.pages = [PageRef(page, tag=page + 100) for page in pages]
    return made


def test_a_plan_becomes_the_arrays_of_a_step():
    recorder = Recorder()
    runner = Runner(recorder, context=64, max_sequences=3, max_rows=40)
    decoding, prompt = sequence([1] * 17 + [9], [5, 6]), sequence(list(range(40)), [7, 8, 3])
    chunks = (Chunk(decoding, 2, 17, 1, 0, True), Chunk(prompt, 0, 16, 20, 0, False))
    runner.start(StepPlan(chunks, 21), want_logits=True)
    [step] = recorder.steps
    assert step["tokens"].tolist() == [9, *range(16, 36)]
    assert step["starts"].tolist() == [0, 1, 21]
    assert step["contexts"].tolist() == [17, 16]
    assert step["slots"].tolist() == [2, 0]
    assert step["page_tables"][0].tolist() == [[7, 8, 3, 0], [0] * 4, [5, 6, 0, 0]]
    assert step["logits_rows"].tolist() == [0]
    assert step["want_logits"]
    assert all(value.dtype == np.int32 for name, value in step.items() if name != "want_logits")


def test_rows_of_the_page_table_grow_and_are_cleared_for_the_next_owner():
    recorder = Recorder()
    runner = Runner(recorder, context=64, max_sequences=1, max_rows=40)
    first = sequence([1] * 40, [5, 6, 7])
    runner.start(StepPlan((Chunk(first, 0, 0, 40, 0, True),), 40), want_logits=False)
    first.tokens.extend([2] * 9)
    first.pages.append(PageRef(4, tag=1))
    runner.start(StepPlan((Chunk(first, 0, 48, 1, 3, True),), 1), want_logits=False)
    assert recorder.steps[-1]["page_tables"][0].tolist() == [[5, 6, 7, 4]]
    runner.start(StepPlan((Chunk(sequence([3], [2]), 0, 0, 1, 0, True),), 1), want_logits=False)
    assert recorder.steps[-1]["page_tables"][0].tolist() == [[2, 0, 0, 0]]
