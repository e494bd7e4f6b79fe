"""What feeds executors by hand keeps their contract, whatever the cache groups: the null executor checks it."""

import pytest

from trimaran.bench.bare import BareExecutor
from trimaran.bench.cases import Decode, EndToEnd, Prefill
from trimaran.bench.parity import CHUNK, forward
from trimaran.kernels.null import NullExecutor, NullModel
from trimaran.kernels.step import ExecutorOptions

WINDOWS = [(None,), (40,), (None, 40)]


def executor(windows: tuple[int | None, ...], *, max_rows: int = 512) -> NullExecutor:
    model = NullModel(vocab=300, context=1024, windows=windows)
    pages = tuple(200 - 20 * number for number in range(len(windows)))
    return NullExecutor(model.program(), {}, ExecutorOptions(num_pages=pages, max_rows=max_rows), model)


@pytest.mark.parametrize("case", [Prefill(700), Decode(600, 4), Decode(20, 3, 4), EndToEnd(4, 20, 3)])
@pytest.mark.parametrize("windows", WINDOWS)
def test_prepared_steps_keep_the_contract(windows, case):
    assert BareExecutor(executor(windows), vocab=300).measure(case)


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_text_gives_logits_at_every_position(windows):
    parts = list(forward(executor(windows, max_rows=CHUNK), range(200)))
    assert sum(len(part) for part in parts) == 200
