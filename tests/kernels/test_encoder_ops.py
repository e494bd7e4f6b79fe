"""What encoders have beside decoders: layer norms, exact GELU, tables by position, means, attention both ways."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from trimaran.base.formats import ActivationFormat, KVFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.program import Attention, Buffer, Embed, Gelu, LayerNorm, MeanRows, Op, Program, RopeSpec, Tanh
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.step import Executor, ExecutorOptions
from trimaran.kernels.weights import Weight

from .single_op import Part, X, buffer, fp32, named, program, rows_step, step
from .test_native_attention import isa

__all__ = ["isa"]
EXACT = ExecutorOptions(
    KVFormat.FP32, ActivationFormat.FP32, num_pages=80, max_rows=320, max_sequences=16, threads=2, share_prefixes=True
)
HEADS = 4


def table(width: int, rows: int = 64) -> Weight:
    return fp32(X, np.random.default_rng(5).standard_normal((rows, width)))


def results(executor: Executor, *parts: Part, rows: list[int] | None = None) -> np.ndarray:
    total = sum(len(part.tokens) for part in parts)
    out = executor.run(step(*parts, logits_rows=rows or range(max(0, total - 16), total))).logits
    assert out is not None
    return out.copy()


@pytest.mark.parametrize("width", [32, 64, 100, 384])
def test_layer_norm_is_the_reference(isa: str, width: int) -> None:
    rng = np.random.default_rng(1)
    weights = [table(width), fp32("w", rng.standard_normal(width)), fp32("b", rng.standard_normal(width))]
    x, out = buffer("x", width), buffer("out", width)
    made = program([LayerNorm(out, x, "w", "b", 1e-6)], weights, out)
    got, wanted = (
        kind(made, named(weights), EXACT).run(rows_step(range(9))).logits
        for kind in (NativeExecutor, ReferenceExecutor)
    )
    assert got is not None
    assert wanted is not None
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5)
    rows = weights[0].data[:9]
    normed = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(wanted, normed * weights[1].data + weights[2].data, rtol=0, atol=2e-5)


def outputs_of(op: Callable[[Buffer, Buffer], Op], values: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Some of ``values`` and what ``op(out, x)`` makes of them, on both executors."""
    weights = [fp32(X, np.repeat(values[:, None], 32, 1))]
    x, out = buffer("x", 32), buffer("out", 32)
    made = replace(program([op(out, x)], weights, out), vocab=len(values))
    for kind in (NativeExecutor, ReferenceExecutor):
        executor = kind(made, named(weights), EXACT)
        for rows in (range(i, min(i + 16, len(values))) for i in range(0, len(values), 16)):
            got = executor.run(rows_step(list(rows))).logits
            assert got is not None
            yield values[list(rows)], got[:, 0]


def test_gelu_is_exact(isa: str) -> None:
    values = np.concatenate([np.linspace(-9, 9, 4001), [0.0, -0.0, 60.0, -60.0, 1e30, -1e30]])
    for x, got in outputs_of(Gelu, values):
        np.testing.assert_allclose(got, x / 2 * (1 + _erf(x / np.sqrt(2))), rtol=2e-6, atol=6e-7)


def test_tanh(isa: str) -> None:
    values = np.concatenate(
        [np.linspace(-12, 12, 4001), [0.0, -0.0, 60.0, -60.0, 1e30, -1e30, np.inf, -np.inf, np.nan]]
    )
    for x, got in outputs_of(Tanh, values):
        np.testing.assert_allclose(got, [math.tanh(v) for v in x], rtol=0, atol=3e-7)


def _erf(x: np.ndarray) -> np.ndarray:
    """By its series near 0 and its continued fraction elsewhere: nothing that the code under test uses."""
    x = np.clip(x.astype(np.float64), -6, 6)
    a = np.abs(x)
    term = total = a.copy()
    for n in range(1, 120):
        term = -term * a * a / n
        total = total + term / (2 * n + 1)
    fraction = np.zeros_like(a)
    for n in range(60, 0, -1):
        fraction = n / 2 / (a + fraction + 1e-300)
    far = 1 - np.exp(-a * a) / np.sqrt(np.pi) / (a + fraction + 1e-300)
    return np.sign(x) * np.where(a < 3, 2 / np.sqrt(np.pi) * total, far)


def both_ways(head_dim: int) -> tuple[Program, dict[str, Weight]]:
    width = 3 * HEADS * head_dim
    weights, out = [table(width)], buffer("out", HEADS * head_dim)
    op = Attention(
        out, buffer("x", width), 0, 0, HEADS, HEADS, head_dim, head_dim**-0.5, RopeSpec(1.0, 0), causal=False
    )
    return program([op], weights, out, kv_heads=HEADS, head_dim=head_dim, context=1024), named(weights)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 128, 129, 300])
@pytest.mark.parametrize("head_dim", [32, 64])
def test_every_row_sees_the_whole_text(isa: str, head_dim: int, length: int) -> None:
    made, weights = both_ways(head_dim)
    text = np.random.default_rng(length).integers(0, 64, length).tolist()
    part = Part(text, 0, range(1, 40))
    rows = sorted({0, length // 2, length - 1})
    wanted = results(ReferenceExecutor(made, weights, EXACT), part, rows=rows)
    got = results(NativeExecutor(made, weights, EXACT), part, rows=rows)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5)
    q, k, v = np.split(weights[X].data[text].reshape(length, 3 * HEADS, head_dim), 3, axis=1)
    scores = np.einsum("rhd,chd->hrc", q[rows], k) * head_dim**-0.5
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    plain = np.einsum("hrc,chd->rhd", shares, v).reshape(len(rows), -1)
    np.testing.assert_allclose(wanted, plain, rtol=0, atol=2e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_text_gets_the_same_bits_whatever_its_company(isa: str, threads: int) -> None:

    made, weights = both_ways(32)
    executor = NativeExecutor(made, weights, replace(EXACT, threads=threads))
    text, other = list(range(30)) * 5, list(range(63, 0, -1))
    alone = results(executor, Part(text, 0, range(1, 20)), rows=[0, 77, 149])
    shifted = results(
        executor,
        Part(other, 0, range(21, 30)),
        Part(text, 0, range(40, 60)),
        Part([5], 0, [70]),
        rows=[63, 140, 212],
    )
    assert alone.tobytes() == shifted.tobytes()


@pytest.mark.parametrize("kind", [NativeExecutor, ReferenceExecutor])
def test_tables_by_position_and_the_mean_of_a_text(kind: type[NativeExecutor] | type[ReferenceExecutor]) -> None:
    width = 64
    rng = np.random.default_rng(2)
    weights = [
        table(width),
        fp32("places", rng.standard_normal((512, width))),
        fp32("one", rng.standard_normal((2, width))),
    ]
    ops: list[Op] = [
        Embed(buffer("places", width), "places", index="position"),
        Embed(buffer("one", width), "one", scale=3.0, index="type"),
    ]
    parts = (Part([1, 2, 3], 0, [1]), Part([9], 7, [2]), Part(list(range(20)), 0, [3, 4]))
    for op, source in zip(ops, ("places", "one"), strict=True):
        mean = buffer("mean", width, logits_rows=True)
        made = program([op, MeanRows(mean, op.out)], weights, mean)
        got = results(kind(made, named(weights), EXACT), *parts, rows=[1, 3, 23])
        where = [[0, 1, 2], [7], list(range(20))] if source == "places" else [[0]] * 3
        scale = 1.0 if source == "places" else 3.0
        wanted = [scale * named(weights)[source].data[rows].mean(0) for rows in where]
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", [NativeExecutor, ReferenceExecutor])
def test_rows_have_types(kind: type[NativeExecutor] | type[ReferenceExecutor]) -> None:
    weights = [table(64), fp32("kinds", np.random.default_rng(2).standard_normal((3, 64)))]
    out = buffer("kinds", 64)
    made = program([Embed(out, "kinds", index="type")], weights, out)
    executor = kind(made, named(weights), EXACT)
    inputs = rows_step(range(4))
    for types in (None, [0, 0, 0, 0], [0, 2, 1, 1]):
        got = executor.run(replace(inputs, types=None if types is None else np.array(types, np.int32))).logits
        np.testing.assert_array_equal(got, weights[1].data[types or [0] * 4])
    for wrong in ([0, 3, 0, 0], [0, 0, 0, -1], [0, 0]):
        with pytest.raises(ValueError, match="type"):
            executor.run(replace(inputs, types=np.array(wrong, np.int32)))
    untyped = kind(program([], weights[:1], buffer("x", 64)), named(weights[:1]), EXACT)
    with pytest.raises(ValueError, match="type"):
        untyped.run(replace(inputs, types=np.zeros(4, np.int32)))
