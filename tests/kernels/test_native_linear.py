"""Linear layers of the native executor: every format, epilogue and row count, against float64 on the same numbers."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from trimaran import _native
from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import ActivationFormat, WeightFormat
from trimaran.kernels.dequantise import dequantise, pack_nibbles
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.native_weights import canonical_arrays
from trimaran.kernels.program import Add, Glu, Linear, Op, RmsNorm
from trimaran.kernels.reference_ops import glu, rms_norm, through_int8
from trimaran.kernels.step import ExecutorOptions
from trimaran.kernels.weights import Weight
from trimaran.quant.convert import quantise

from .single_op import buffer, fp32, named, program, rows_step, with_outliers

OPTIONS = ExecutorOptions(num_pages=2, max_rows=64, max_sequences=64, threads=2)
ISAS = _native.usable_isas()
ROWS = [1, 2, 3, 5, 6, 7, 12, 13, 24, 25, 31, 64, 128, 129, 257, 300]  # around every tile, path and block boundary


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TRIMARAN_ISA", request.param)
    return str(request.param)


def table(width: int, rows: int = 64, seed: int = 0) -> np.ndarray:
    """Inputs with rows of different size, an all-zero group and an all-zero row."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width), np.float32) * rng.uniform(0.1, 3, (rows, 1)).astype(np.float32)
    x[3, : min(32, width)] = 0
    x[4] = 0
    return x


def matrix(fmt: WeightFormat, n: int, k: int, seed: int = 1) -> Weight:
    values = np.random.default_rng(seed).standard_normal((n, k), np.float32) * np.float32(k**-0.5)
    return with_outliers(quantise("w", values + np.float32(0.02), fmt), seed)


def run(ops: Sequence[Op], weights: Sequence[Weight], options: ExecutorOptions, rows: int) -> np.ndarray:
    executor = NativeExecutor(program(ops, weights, result=ops[-1].out), named(weights), options)  # type: ignore[union-attr]
    out = executor.run(rows_step(range(rows))).logits
    assert out is not None
    copy = out.copy()
    executor.close()
    return copy


def seen_by(weight: Weight, x: np.ndarray, activations: ActivationFormat, *, wide: bool = False) -> np.ndarray:
    """The input as the linear layer multiplies it; rounding to int8 is done in float32, as executors do."""
    rounds = weight.fmt.integer and activations is ActivationFormat.INT8
    return (through_int8(x, wide=wide) if rounds else x).astype(np.float64)


@pytest.mark.parametrize("fmt", list(WeightFormat))
@pytest.mark.parametrize("activations", list(ActivationFormat))
@pytest.mark.parametrize(("n", "k"), [(257, 96), (48, 32), (64, 1536)], ids=str)
@pytest.mark.parametrize("wide", [False, True], ids=["", "wide"])
def test_a_linear_layer_is_the_product_of_its_numbers(
    isa: str, fmt: WeightFormat, activations: ActivationFormat, n: int, k: int, wide: bool
) -> None:
    w, x = matrix(fmt, n, k), table(k)
    options = replace(OPTIONS, activations=activations)
    linear = Linear(buffer("y", n), buffer("x", k), "w", wide=wide)
    out = run([linear], [fp32("x", x[:n]), w], options, min(n, 64))
    expected = seen_by(w, x[: min(n, 64)], activations, wide=wide) @ dequantise(w).astype(np.float64).T
    np.testing.assert_allclose(out, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("fmt", [WeightFormat.FP32, WeightFormat.BF16])
def test_floats_need_no_groups(isa: str, fmt: WeightFormat) -> None:
    w, x = matrix(fmt, 70, 42), table(42)
    out = run([Linear(buffer("y", 70), buffer("x", 42), "w")], [fp32("x", x), w], OPTIONS, 64)
    np.testing.assert_allclose(out, x.astype(np.float64) @ dequantise(w).astype(np.float64).T, atol=2e-5)


@pytest.mark.parametrize("activations", list(ActivationFormat))
@pytest.mark.parametrize("fmt", list(WeightFormat))
@pytest.mark.parametrize("wide", [False, True], ids=["", "wide"])
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    isa: str, fmt: WeightFormat, activations: ActivationFormat, wide: bool
) -> None:
    w, x = matrix(fmt, 80, 96), table(96)
    options = replace(OPTIONS, activations=activations, max_rows=max(ROWS), max_sequences=max(ROWS))
    y = buffer("y", 80)
    weights = [fp32("x", x), w]
    linear = Linear(y, buffer("x", 96), "w", wide=wide)
    executor = NativeExecutor(program([linear], weights, y), named(weights), options)

    def rows(count: int) -> np.ndarray:
        out = executor.run(rows_step([row % len(x) for row in range(count)])).logits
        assert out is not None
        return out.copy()

    whole = rows(max(ROWS))
    for count in ROWS:
        assert rows(count).tobytes() == whole[:count].tobytes(), count


@pytest.mark.parametrize("fmt", list(WeightFormat))
@pytest.mark.parametrize("wide", [False, True], ids=["", "wide"])
def test_instruction_sets_with_fma_make_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, fmt: WeightFormat, wide: bool
) -> None:
    w, x = matrix(fmt, 80, 96), table(96)
    outs = set()
    for name in ISAS:
        if name == "generic" and len(ISAS) > 1:  # rounds products and sums apart
            continue
        monkeypatch.setenv("TRIMARAN_ISA", name)
        linear = Linear(buffer("y", 80), buffer("x", 96), "w", wide=wide)
        outs.add(run([linear], [fp32("x", x), w], OPTIONS, 64).tobytes())
    assert len(outs) == 1


@pytest.mark.parametrize("fmt", [WeightFormat.INT8, WeightFormat.INT4, WeightFormat.INT4Z])
def test_extreme_integers_do_not_overflow(isa: str, fmt: WeightFormat) -> None:
    """Every weight and activation at the end of its range, -128 included: no instruction set may saturate."""
    n, k, groups = 32, 64, 2
    scale, minimum = np.full((n, groups), 0.5, np.float16), np.full((n, groups), -3, np.float16)
    nibbles = np.full((n, k // 2), 0xFF, np.uint8)
    w = {
        WeightFormat.INT8: Weight("w", fmt, (n, k), np.full((n, k), -128, np.int8), scale),
        WeightFormat.INT4: Weight("w", fmt, (n, k), nibbles, scale),
        WeightFormat.INT4Z: Weight("w", fmt, (n, k), nibbles, scale, minimum),
    }[fmt]
    x = np.stack([np.full(k, 127, np.float32), np.full(k, -127, np.float32), np.resize([127, -127], k)])
    out = run([Linear(buffer("y", n), buffer("x", k), "w")], [fp32("x", x.astype(np.float32)), w], OPTIONS, 3)
    np.testing.assert_array_equal(out, x.astype(np.float64) @ dequantise(w).astype(np.float64).T)


@pytest.mark.parametrize("fmt", [WeightFormat.CODEBOOK4, WeightFormat.CODEBOOK3])
def test_every_code_finds_its_columns_own_level(isa: str, fmt: WeightFormat) -> None:
    """All levels of an int8, -128 included, in columns that share none; each code at each place of a block."""
    n, k = 288, 256
    rng = np.random.default_rng(0)
    codebook = rng.integers(-128, 128, (n, fmt.levels)).astype(np.int8)
    codebook[0, 0], codebook[1, -1] = -128, 127
    codes = rng.integers(0, fmt.levels, (n, k)).astype(np.uint8)
    w = Weight("w", fmt, (n, k), pack_nibbles(codes), np.ones(n, np.float16), codebook=codebook)
    one_of_each = np.eye(k, dtype=np.float32)
    for activations in ActivationFormat:
        options = replace(OPTIONS, activations=activations, max_rows=k, max_sequences=k)
        for rows in (k, 1):
            out = run([Linear(buffer("y", n), buffer("x", k), "w")], [fp32("x", one_of_each), w], options, rows)
            np.testing.assert_allclose(out, dequantise(w).T[:rows], rtol=1e-6)
    table = NativeExecutor(program([], [replace(w, name="x")], buffer("x", k)), {"x": w}, OPTIONS)
    read = table.run(rows_step(range(64))).logits
    np.testing.assert_array_equal(read, dequantise(w)[:64])


def test_fp8_is_the_product_of_its_numbers_in_fp32(isa: str) -> None:
    """Bit for bit, for every code and for scales down to the smallest numbers."""
    n, k = 70, 288
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 127, (n, k)).astype(np.uint8) | rng.choice(np.uint8([0, 128]), (n, k))
    scale = np.ldexp(np.float32(1.3), rng.integers(-100, 6, (n, 3))).astype(np.float32)
    w = Weight("w", WeightFormat.FP8, (n, k), codes, scale)
    plain = fp32("w", dequantise(w))
    for rows in (1, 5, 13, 64):
        ops = [Linear(buffer("y", n), buffer("x", k), "w")]
        ours, theirs = (run(ops, [fp32("x", table(k)), each], OPTIONS, rows) for each in (w, plain))
        assert ours.tobytes() == theirs.tobytes()
    embedded = NativeExecutor(program([], [replace(w, name="x")], buffer("x", k)), {"x": w}, OPTIONS)
    read = embedded.run(rows_step(range(64))).logits
    np.testing.assert_array_equal(read, dequantise(w)[:64])


@pytest.mark.parametrize("first", [WeightFormat.INT8, WeightFormat.CODEBOOK3])
@pytest.mark.parametrize("count", [1, 40])
def test_layers_with_and_without_outliers_share_an_input(isa: str, first: WeightFormat, count: int) -> None:
    x = table(96)
    second = WeightFormat.CODEBOOK4 if first is WeightFormat.INT8 else WeightFormat.INT4
    a, b = replace(matrix(first, 64, 96), name="a"), replace(matrix(second, 64, 96, seed=2), name="b")
    ys = [buffer(name, 64) for name in ("ya", "yb", "y")]
    ops = [Linear(ys[0], buffer("x", 96), "a"), Linear(ys[1], buffer("x", 96), "b"), Add(ys[2], ys[0], ys[1])]
    out = run(ops, [fp32("x", x), a, b], OPTIONS, count)
    both = dequantise(a).astype(np.float64) + dequantise(b)
    np.testing.assert_allclose(out, seen_by(a, x, ActivationFormat.INT8)[:count] @ both.T, atol=4e-5)


def test_arrays_that_do_not_match_are_refused() -> None:
    w = matrix(WeightFormat.CODEBOOK4, 32, 64)
    assert w.outliers is not None
    bad = replace(w.outliers, columns=w.outliers.columns + np.int32(60))
    for wrong in (replace(w, outliers=bad), replace(w, codebook=None), replace(w, scale=None)):
        with pytest.raises(ValueError, match="arrays do not match a codebook4 matrix of 32 x 64"):
            canonical_arrays(wrong)
    wide = with_outliers(quantise("w", np.zeros((2, 65568), np.float32), WeightFormat.CODEBOOK3))
    with pytest.raises(UnsupportedError, match="outliers and 65568 inputs, more than 65536"):
        run([Linear(buffer("y", 2), buffer("x", 65568), "w")], [fp32("x", np.zeros((1, 65568))), wide], OPTIONS, 1)


def test_every_fp16_scale_is_read_as_its_value(isa: str) -> None:
    """All 65,536 of them, as scales of an embedding and (the finite ones) of a linear layer."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    ones = Weight("x", WeightFormat.INT8, (1024, 2048), np.ones((1024, 2048), np.int8), halves.reshape(1024, 64))
    table = NativeExecutor(program([], [ones], buffer("x", 2048)), {"x": ones}, replace(OPTIONS, max_rows=1024))
    for first in range(0, 1024, 64):
        read = table.run(rows_step(range(first, first + 64))).logits
        assert read is not None
        np.testing.assert_array_equal(read[:, ::32].ravel(), halves[first * 64 :][:4096].astype(np.float32))

    finite = np.where(np.isfinite(halves), halves, 0).astype(np.float16).reshape(2048, 32)
    w = Weight("w", WeightFormat.INT8, (2048, 1024), np.ones((2048, 1024), np.int8), finite)
    one_of_each_group = np.zeros((32, 1024), np.float32)
    one_of_each_group[np.arange(32), np.arange(0, 1024, 32)] = 1
    options = replace(OPTIONS, activations=ActivationFormat.FP32)
    ops = [Linear(buffer("y", 2048), buffer("x", 1024), "w")]
    out = run(ops, [fp32("x", one_of_each_group), w], options, 32)
    np.testing.assert_array_equal(out, finite.astype(np.float32).T)


@pytest.mark.parametrize("fmt", list(WeightFormat))
def test_bias_and_residual_sum(isa: str, fmt: WeightFormat) -> None:
    w, x = matrix(fmt, 64, 64), table(64)
    b = fp32("b", np.linspace(-1, 1, 64))
    y, z = buffer("y", 64), buffer("z", 64)
    ops = [Linear(y, buffer("x", 64), "w", "b"), Add(z, buffer("x", 64), y)]
    out = run(ops, [fp32("x", x), w, b], OPTIONS, 40)
    product = seen_by(w, x, ActivationFormat.INT8) @ dequantise(w).astype(np.float64).T
    np.testing.assert_allclose(out, (x + product + b.data)[:40], atol=2e-5)


@pytest.mark.parametrize("width", [64, 48, 40])  # of gate and of up: strips full, half and ragged
@pytest.mark.parametrize(
    "fmt",
    [WeightFormat.INT4Z, WeightFormat.INT8, WeightFormat.BF16, WeightFormat.FP8, WeightFormat.CODEBOOK3],
)
def test_gate_and_up_in_one(isa: str, fmt: WeightFormat, width: int) -> None:
    w, x = matrix(fmt, 2 * width, 64), table(64, min(64, width))
    b = fp32("b", np.linspace(-1, 1, 2 * width))
    y, z = buffer("y", 2 * width), buffer("z", width)
    out = run([Linear(y, buffer("x", 64), "w", "b"), Glu(z, y)], [fp32("x", x), w, b], OPTIONS, len(x))
    both = seen_by(w, x, ActivationFormat.INT8) @ dequantise(w).astype(np.float64).T + b.data
    np.testing.assert_allclose(out, glu(both, "silu"), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("fmt", list(WeightFormat))
@pytest.mark.parametrize("count", [1, 40])
def test_norm_in_front(isa: str, fmt: WeightFormat, count: int) -> None:
    w, x = matrix(fmt, 96, 96), table(96)
    norm = fp32("norm", np.random.default_rng(5).uniform(0.5, 1.5, 96))
    h, y = buffer("h", 96), buffer("y", 96)
    ops: list[Op] = [RmsNorm(h, buffer("x", 96), "norm", 1e-5), Linear(y, h, "w")]
    out = run(ops, [fp32("x", x), w, norm], OPTIONS, count)
    normed = rms_norm(x, np.asarray(norm.data), np.float32(1e-5))
    expected = seen_by(w, normed, ActivationFormat.INT8) @ dequantise(w).astype(np.float64).T
    # a value half-way between two integers may round either way: one step of int8 in one of the inputs
    step = np.abs(normed[:count]).max() / 127 * np.abs(dequantise(w)).max() if fmt.integer else 0
    np.testing.assert_allclose(out, expected[:count], atol=2e-5 + 2 * step)


def ways(weights: list[Weight]) -> list[Callable[[], list[Op]]]:
    """The same sum as ops that fuse and as ops that cannot, because a second reader needs what lies between."""
    x, h, y, z, spare = (buffer(name, 64) for name in ("x", "h", "y", "z", "spare"))

    def fused() -> list[Op]:
        return [RmsNorm(h, x, "norm", 1e-5), Linear(y, h, "w"), Add(z, x, y)]

    def apart() -> list[Op]:
        return [RmsNorm(h, x, "norm", 1e-5), Linear(y, h, "w"), Add(spare, h, y), Add(z, x, y)]

    return [fused, apart]


@pytest.mark.parametrize("fmt", list(WeightFormat))
@pytest.mark.parametrize("count", [1, 40])
def test_fusion_does_not_change_a_bit(isa: str, fmt: WeightFormat, count: int) -> None:
    weights = [fp32("x", table(64)), matrix(fmt, 64, 64), fp32("norm", np.linspace(0.5, 1.5, 64))]
    fused, apart = (run(way(), weights, OPTIONS, count) for way in ways(weights))
    assert fused.tobytes() == apart.tobytes()
