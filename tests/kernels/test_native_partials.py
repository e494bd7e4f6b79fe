"""Rows of a long context are shared among threads by blocks; what that takes of memory is bounded."""

from pathlib import Path

import numpy as np

from trimaran.base.formats import CacheGroup, HeadsCache, KVFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.program import Attention, Embed, Logits, Program, RopeSpec, TakeRows, WeightSpec
from trimaran.kernels.step import ExecutorOptions, StepInputs

from .single_op import X, buffer, fp32

HEADS, DIM, ROWS, CONTEXT = 24, 16, 16, 1 << 20
MOST = 256 << 20  # bytes; without a bound these rows would take half as much again


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def long_attention(threads: int) -> tuple[np.ndarray, int]:
    """What a few rows after a million tokens attend to, and by how much the step made the process grow."""
    x = np.random.default_rng(0).standard_normal((ROWS, (HEADS + 2) * DIM)).astype(np.float32)
    out, taken = buffer("out", HEADS * DIM), buffer("taken", HEADS * DIM, logits_rows=True)
    source = buffer(X, x.shape[1])
    op = Attention(out, source, 0, 0, HEADS, 1, DIM, 1.0, RopeSpec(1000.0, 2), window=CONTEXT)
    group = CacheGroup((HeadsCache(1, 1, DIM),), CONTEXT)  # with a window, one page may stand for all tokens
    ops = (Embed(source, X), op, TakeRows(taken, out), Logits(taken))
    made = Program("test", ops, {X: WeightSpec(X, x.shape, matrix=True)}, (group,), HEADS * DIM, x.shape[1], CONTEXT)
    options = ExecutorOptions(KVFormat.FP32, num_pages=3, max_rows=ROWS, max_sequences=ROWS, threads=threads)
    executor = NativeExecutor(made, {X: fp32(X, x)}, options)
    pages = np.ones((1, CONTEXT // options.page_size), np.int32)
    rows = np.arange(ROWS, dtype=np.int32)
    starts, contexts = np.array([0, ROWS], np.int32), np.array([CONTEXT - ROWS], np.int32)
    before = resident()
    logits = executor.run(StepInputs(rows, starts, contexts, np.zeros(1, np.int32), (pages,), rows, True)).logits
    assert logits is not None
    return logits.copy(), resident() - before


def test_partial_results_are_bounded() -> None:
    shared, grown = long_attention(threads=8)
    assert 16 << 20 < grown < MOST + (32 << 20)  # some rows are shared among threads, the others are not
    alone, _ = long_attention(threads=1)
    assert shared.tobytes() == alone.tobytes()
