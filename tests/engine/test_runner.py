import numpy as np

from trimaran.engine.plan import Chunk, StepPlan
from trimaran.engine.runner import Runner
from trimaran.kernels.page_tags import PageTags
from trimaran.kernels.step import StepInputs

from .caching import sequence


class Recorder:
    """An executor that keeps what it was given."""

    def __init__(self) -> None:
        self.steps: list[dict] = []

    def start(self, step: StepInputs) -> None:
        kept = {name: getattr(step, name) for name in ("page_tables", "expected", "decoding", "types")}
        arrays = (name for name in step.__dataclass_fields__ if name not in kept)
        self.steps.append({name: np.copy(getattr(step, name)) for name in arrays} | kept)


def test_a_plan_becomes_the_arrays_of_a_step():
    recorder = Recorder()
    tables = (np.arange(12, dtype=np.int32).reshape(3, 4), np.zeros((3, 4), np.int32))
    expected = (PageTags.of(3, 4), PageTags.of(3, 4))
    runner = Runner(recorder, tables, expected, (None, 16), max_sequences=3, max_rows=40)
    decoding, prompt = sequence([1] * 17 + [9]), sequence(list(range(40)))
    chunks = (Chunk(decoding, 2, 17, 1, True), Chunk(prompt, 0, 16, 20, False))
    runner.start(StepPlan(chunks, 21), want_logits=True)
    [step] = recorder.steps
    assert step["tokens"].tolist() == [9, *range(16, 36)]
    assert step["starts"].tolist() == [0, 1, 21]
    assert step["contexts"].tolist() == [17, 16]
    assert step["slots"].tolist() == [2, 0]
    assert all(given is table for given, table in zip(step["page_tables"], tables, strict=True))
    assert step["logits_rows"].tolist() == [0]
    assert step["want_logits"]
    assert step["expected"] is expected
    assert step["readers"].tolist() == [decoding.owner, prompt.owner]
    assert (step["decoding"], step["types"]) == (None, None)
    others = ("want_logits", "page_tables", "expected", "readers", "decoding", "types")
    assert all(value.dtype == np.int32 for name, value in step.items() if name not in others)
