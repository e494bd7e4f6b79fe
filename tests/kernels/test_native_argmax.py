"""Greedy choice of the native executor: the lowest id among equals, whichever thread meets it first."""

from dataclasses import replace

import numpy as np
import pytest

from trimaran import _native
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.native_lowering import FusedLinear, lower
from trimaran.kernels.program import Linear, Op, TakeRows
from trimaran.kernels.step import ExecutorOptions

from .single_op import buffer, fp32, named, program, rows_step

OPTIONS = ExecutorOptions(num_pages=2, max_rows=64, max_sequences=64)


def arg_max_of(equal: np.ndarray, *, n: int, fused: bool, threads: int) -> NativeExecutor:
    """Logits are -8 where ``equal`` says so and -32 elsewhere: below zero, as the padding of a strip must not win."""
    w = np.full((n, 32), -1, np.float32)
    w[equal] = -0.25
    weights = [fp32("x", np.ones((64, 32))), fp32("w", w)]
    x, taken = buffer("x", 32), buffer("taken", 32, logits_rows=True)
    y = buffer("y", n, logits_rows=fused)
    ops: list[Op] = [TakeRows(taken, x), Linear(y, taken, "w")] if fused else [Linear(y, x, "w")]
    made = program(ops, weights, y)
    assert isinstance(lower(made)[-1], FusedLinear) is fused
    return NativeExecutor(made, named(weights), replace(OPTIONS, threads=threads))


@pytest.mark.parametrize("isa", _native.usable_isas())
@pytest.mark.parametrize("fused", [True, False])
def test_the_lowest_of_equal_logits_wins(monkeypatch: pytest.MonkeyPatch, isa: str, fused: bool) -> None:
    monkeypatch.setenv("TRIMARAN_ISA", isa)
    runner = arg_max_of(np.array([40, 700, 1024]), n=1025, fused=fused, threads=2)
    for count in (1, 2, 40):
        out = runner.run(rows_step([0] * count, want_logits=False))
        assert (out.greedy.tolist(), out.logits) == ([40] * count, None)


@pytest.mark.parametrize("threads", [2, 3])
def test_equal_logits_in_strips_that_any_thread_takes_in_any_order(threads: int) -> None:
    """The lowest id lies in the last strips of the first thread's share, which another thread often takes over."""
    strips = 513
    first = strips * 32 // threads - 100
    runner = arg_max_of(np.arange(first, strips * 32), n=strips * 32, fused=True, threads=threads)
    step = rows_step([0] * 64, want_logits=False)
    assert {tuple(runner.run(step).greedy.tolist()) for _ in range(200)} == {(first,) * 64}
