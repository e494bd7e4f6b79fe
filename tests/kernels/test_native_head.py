"""The int8 output head in two planes: the bits of whole bytes, and the greedy choice from half of them."""

from dataclasses import replace

import numpy as np
import pytest

from trimaran import _native
from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.native_lowering import FusedLinear, lower
from trimaran.kernels.program import Embed, Linear, Op, Program, TakeRows
from trimaran.kernels.step import ExecutorOptions
from trimaran.kernels.weights import Weight
from trimaran.quant.convert import quantise

from .single_op import buffer, fp32, named, program, rows_step

K = 576
OPTIONS = ExecutorOptions(num_pages=2, max_rows=64, max_sequences=64, threads=2)
ROWS = (1, 2, 3, 6, 7, 12, 13, 40)  # around every tile, and around the largest number that is scanned


@pytest.fixture(params=_native.usable_isas(), autouse=True)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_ISA", request.param)


def head(w: Weight, x: np.ndarray, bias: np.ndarray | None = None) -> tuple[Program, dict[str, Weight]]:
    n, k = w.shape
    taken, y = buffer("taken", k, logits_rows=True), buffer("y", n, logits_rows=True)
    weights = [fp32("x", x), w, *([] if bias is None else [fp32("b", bias)])]
    ops: list[Op] = [TakeRows(taken, buffer("x", k)), Linear(y, taken, "w", None if bias is None else "b")]
    made = program(ops, weights, y)
    last = lower(made)[-1]
    assert isinstance(last, FusedLinear)
    assert last.epilogue == "logits"
    return made, named(weights)


def inputs(k: int = K) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((64, k)).astype(np.float32)


def random_values(n: int = 3001, k: int = K) -> np.ndarray:
    """Columns of different size."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, k), np.float32) * rng.uniform(0.2, 2, (n, 1)).astype(np.float32)


def int8(values: np.ndarray) -> Weight:
    return quantise("w", values, WeightFormat.INT8)


def integers(q: np.ndarray) -> Weight:
    """``q`` itself, with one scale for all."""
    return Weight("w", WeightFormat.INT8, q.shape, q.astype(np.int8), np.full((len(q), q.shape[1] // 32), 2**-6, "f2"))


def drawn(*values: int) -> Weight:
    return integers(np.random.default_rng(2).choice(values, (1500, K)))


def tied() -> Weight:
    """Every column four times, in strips far apart: equal logits everywhere."""
    return int8(np.tile(random_values(700), (4, 1)))


def with_scale(value: float) -> Weight:
    w = int8(random_values())
    assert w.scale is not None
    scale = w.scale.copy()
    scale[1234, 3] = value
    return replace(w, scale=scale)


HEADS = {
    "random": lambda: int8(random_values()),
    "few inputs": lambda: int8(random_values(k=64)),
    "tied": tied,
    "nearly tied": lambda: int8(random_values(1) + 1e-3 * random_values(2000)),
    "below zero": lambda: int8(-np.abs(random_values())),  # with inputs above zero; the padding of a strip is zero
    "constant": lambda: integers(np.full((100, K), 77)),
    "zero": lambda: integers(np.zeros((100, K))),
    "ternary": lambda: drawn(-127, 0, 127),
    "sixteen levels": lambda: drawn(*range(-112, 128, 16)),
    "high nibbles alike": lambda: integers(np.random.default_rng(3).integers(0, 16, (1500, K))),
    "extreme": lambda: drawn(-128, 127),
    "infinite scale": lambda: with_scale(np.inf),
    "scale is no number": lambda: with_scale(np.nan),
}


@pytest.mark.parametrize("kind", HEADS)
def test_the_greedy_choice_is_that_of_all_logits(kind: str) -> None:
    w = HEADS[kind]()
    x = inputs(w.shape[1])
    x[5] = 0
    if kind == "below zero":
        x = np.abs(x)
    everything = NativeExecutor(*head(w, x), OPTIONS).run(rows_step(range(64)))
    for count in ROWS:
        executor = NativeExecutor(*head(w, x), OPTIONS)  # one scans twice before it can find that this does not pay
        for first in (0, 4, 64 - count):
            greedy = executor.run(rows_step(range(first, first + count), want_logits=False)).greedy
            assert greedy.tolist() == everything.greedy[first : first + count].tolist(), (count, first)


@pytest.mark.parametrize("deviations", [4, 30])
def test_low_nibbles_that_conspire_do_not_hide_the_largest_logit(deviations: float) -> None:
    """Two columns whose low nibbles err in opposite directions: by less than the scan allows for, or not random."""
    rng = np.random.default_rng(5)
    x = rng.integers(-126, 127, K)
    x[::32] = 127  # integers are activations already
    deviation = np.sqrt(21.25 * (x * x).sum())

    def error(low: np.ndarray) -> float:
        return float((low - 7.5) @ x / deviation)

    order, low = rng.permutation(K), rng.integers(0, 16, K)
    best, rival = low.copy(), low.copy()
    for nibbles, sign in ((best, 1), (rival, -1)):
        for i in order:  # one by one as they should not be
            if abs(error(nibbles)) > deviations:
                break
            wide = 8 if deviations > 4 else abs(low[i] - 8)
            nibbles[i] = np.clip(8 + sign * np.sign(x[i]) * wide, 0, 15)
    q = rng.integers(-127, 128, (192, K))
    q *= -np.sign(q @ x)[:, np.newaxis]  # logits of all others are below zero
    high = np.where(rng.random(K) < 0.5, 8, np.where(x > 0, 12, 4))
    q[170], q[5] = 16 * (high - 8) + best, 16 * (high - 8) + rival
    for i in order:  # the rival's high nibbles nearly make up for it
        if (q[170] - q[5]) @ x > 16 * abs(x[i]):
            q[5, i] += 16 * np.sign(x[i])
    assert 0 < (q[170] - q[5]) @ x < deviation / 8
    assert error(best) > deviations > -deviations > error(rival)
    executor = NativeExecutor(*head(integers(q), x[np.newaxis].astype(np.float32)), replace(OPTIONS, threads=1))
    assert executor.run(rows_step([0], want_logits=False)).greedy.tolist() == [170]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_is_chosen_alike_by_any_number_of_threads(threads: int) -> None:
    w, x = int8(random_values()), inputs()
    bias = np.random.default_rng(4).normal(0, 20, len(w.data)).astype(np.float32)
    executor = NativeExecutor(*head(w, x, bias), replace(OPTIONS, threads=threads))
    expected = executor.run(rows_step(range(64))).greedy.tolist()
    for _ in range(20):
        assert executor.run(rows_step(range(12), want_logits=False)).greedy.tolist() == expected[:12]
    assert [int(executor.run(rows_step([r], want_logits=False)).greedy[0]) for r in range(64)] == expected


def test_the_choice_stays_when_scans_do_not_pay_and_are_tried_again() -> None:
    """Between heads read whole and scans; the rows vary, so that scans come at any of them."""
    x = inputs()
    executor = NativeExecutor(*head(tied(), x), OPTIONS)
    expected = executor.run(rows_step(range(64))).greedy.tolist()
    for step in range(70):
        first, count = step % 50, 1 + step % 12
        greedy = executor.run(rows_step(range(first, first + count), want_logits=False)).greedy
        assert greedy.tolist() == expected[first : first + count], step


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_row_without_finite_logits_has_no_choice(value: float) -> None:
    x = inputs()
    x[2, 40] = value
    executor = NativeExecutor(*head(int8(random_values()), x), OPTIONS)
    alone, among = rows_step([2], want_logits=False), rows_step(range(8), want_logits=False)
    expected = executor.run(rows_step(range(8))).greedy.tolist()
    assert expected[2] == -1 or value == 3e38
    assert executor.run(alone).greedy.tolist() == expected[2:3]
    assert executor.run(among).greedy.tolist() == expected


def test_two_planes_give_the_bits_of_whole_bytes() -> None:
    w, x = int8(random_values()), inputs()
    planes = NativeExecutor(*head(w, x), OPTIONS)
    y = buffer("y", len(w.data))
    weights = [fp32("x", x), w]
    bytes_ = NativeExecutor(program([Linear(y, buffer("x", K), "w")], weights, y), named(weights), OPTIONS)
    for count in ROWS:
        joined, whole = (each.run(rows_step(range(count))).logits for each in (planes, bytes_))
        assert joined is not None
        assert whole is not None
        assert joined.tobytes() == whole.tobytes(), count


def test_an_embedding_reads_the_same_planes() -> None:
    w = int8(random_values(90, 64))
    h, taken, y = buffer("h", 64), buffer("taken", 64, logits_rows=True), buffer("y", 90, logits_rows=True)
    made = program([Embed(h, "w"), TakeRows(taken, h), Linear(y, taken, "w")], [fp32("x", np.ones((90, 64))), w], y)
    weights = named([fp32("x", np.ones((90, 64))), w])
    executor = NativeExecutor(made, weights, OPTIONS)
    out = executor.run(rows_step(range(60))).logits
    assert out is not None
    rows = fp32("x", dequantise(w))
    expected = NativeExecutor(*head(w, rows.data), OPTIONS).run(rows_step(range(60))).logits
    assert expected is not None
    assert out.tobytes() == expected.tobytes()
