"""Windows, norms of queries and keys, scaled queries and embeddings: the definition, and the compiled kernels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from trimaran.base.formats import KVFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.program import (
    Attention,
    Embed,
    Glu,
    HeadNorm,
    Linear,
    Program,
    QueryScale,
    RopeSpec,
    YarnScaling,
)
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.rope import rope_table
from trimaran.kernels.step import Executor, ExecutorOptions
from trimaran.kernels.weights import Weight

from .scales import in_format
from .single_op import Part, buffer, fp32, named, program, rows_step
from .test_native_attention import OPTIONS, TABLE, attend, isa, tokens

__all__ = ["isa"]
EPS = 0.01
YARN = YarnScaling(factor=4.0, original_context=64, beta_fast=8.0, beta_slow=1.0, magnitude=1.2)
HEAD_NORMS = (HeadNorm("q_norm", EPS), HeadNorm("k_norm", EPS))
WHOLE_NORMS = (HeadNorm("q_norm", EPS, whole=True), HeadNorm("k_norm", EPS, whole=True))


@dataclass(frozen=True)
class Variant:
    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec
    window: int | None = None
    norms: tuple[HeadNorm, HeadNorm] | None = None
    query_scale: QueryScale | None = None


VARIANTS = {
    "window of less than a tile": Variant(4, 2, 32, RopeSpec(1000.0, 32), window=5),
    "window of some tiles": Variant(9, 3, 64, RopeSpec(1000.0, 64), window=40),
    "window of more than a block": Variant(4, 2, 32, RopeSpec(1000.0, 16), window=150),
    "norms of heads": Variant(4, 2, 64, RopeSpec(1000.0, 32), norms=HEAD_NORMS),
    "norms of all heads": Variant(6, 2, 32, RopeSpec(1000.0, 16), norms=WHOLE_NORMS),
    "scaled queries": Variant(3, 1, 48, RopeSpec(1000.0, 32, YARN), query_scale=QueryScale(0.2, 30)),
    "all of it, wide heads": Variant(
        4, 1, 256, RopeSpec(1000.0, 256), 129, (WHOLE_NORMS[0], HEAD_NORMS[1]), QueryScale(0.1, 50)
    ),
}
variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))


def made(v: Variant) -> tuple[Program, dict[str, Weight]]:
    """A program whose input is q, k and v and whose logits are what attention returns."""
    rng = np.random.default_rng(4)
    width, out = (v.heads + 2 * v.kv_heads) * v.head_dim, buffer("out", v.heads * v.head_dim)
    q_norm, k_norm = v.norms or (None, None)
    op = Attention(
        out, buffer("x", width), 0, 0, v.heads, v.kv_heads, v.head_dim, 2 * v.head_dim**-0.5, v.rope, v.window,
        q_norm, k_norm, v.query_scale,
    )  # fmt: skip
    weights = [fp32("x", rng.standard_normal((TABLE, width), np.float32))]
    for norm, heads in ((q_norm, v.heads), (k_norm, v.kv_heads)):
        if norm is not None:
            weights.append(fp32(norm.weight, rng.uniform(0.5, 1.5, v.head_dim * (heads if norm.whole else 1))))
    plain = program([op], weights, out, kv_heads=v.kv_heads, head_dim=v.head_dim, context=1024)
    return replace(plain, groups=(replace(plain.groups[0], window=v.window),)), named(weights)


def part(v: Variant, text: Sequence[int], context: int, pages: Sequence[int]) -> Part:
    """A part whose page table holds nonsense where the window of its first row has passed."""
    gone = 0 if v.window is None else max(0, context - v.window + 1) // 16
    return Part(text, context, [10**6] * gone + [*pages[gone:]])


def by_definition(v: Variant, weights: dict[str, Weight], text: Sequence[int]) -> np.ndarray:
    """Attention of all rows, head by head and row by row, in float64."""
    rows = weights["x"].data[list(text)].astype(np.float64).reshape(len(text), -1, v.head_dim)
    q, k, values = np.split(rows, [v.heads, v.heads + v.kv_heads], axis=1)
    cos, sin = rope_table(v.rope, len(text))

    def turned(x: np.ndarray, norm: HeadNorm | None) -> np.ndarray:
        if norm is not None:
            axes = (1, 2) if norm.whole else 2
            scale = np.sqrt((x * x).mean(axis=axes, keepdims=True) + EPS)
            x = x / scale * weights[norm.weight].data.reshape(-1, v.head_dim)
        half = v.rope.dims // 2
        a, b, c, s = x[..., :half], x[..., half : 2 * half], cos[:, None], sin[:, None]
        return np.concatenate([a * c - b * s, b * c + a * s, x[..., 2 * half :]], axis=2)

    q, k = turned(q, v.norms[0] if v.norms else None), turned(k, v.norms[1] if v.norms else None)
    out = np.empty_like(q)
    for i in range(len(text)):
        if v.query_scale is not None:
            q[i] *= 1 + v.query_scale.beta * np.log(1 + i // v.query_scale.original_context)
        seen = range(0 if v.window is None else max(0, i - v.window + 1), i + 1)
        for h in range(v.heads):
            own = h // (v.heads // v.kv_heads)
            scores = np.array([q[i, h] @ k[j, own] for j in seen]) * 2 * v.head_dim**-0.5
            share = np.exp(scores - scores.max())
            out[i, h] = share / share.sum() @ values[list(seen), own]
    return out.reshape(len(text), -1)


@variants
def test_the_reference_does_what_the_definition_says(variant: Variant) -> None:
    text, (built, weights) = tokens(170), made(variant)
    executor = ReferenceExecutor(built, weights, OPTIONS)
    pages = [*range(20, 5, -1)]
    attend(executor, part(variant, text[:158], 0, pages))
    out = attend(executor, part(variant, text[158:], 158, pages))
    np.testing.assert_allclose(out, by_definition(variant, weights, text)[158:], atol=2e-5)


@pytest.mark.parametrize("kv_format", list(KVFormat))
@variants
def test_native_is_the_reference(isa: str, kv_format: KVFormat, variant: Variant) -> None:
    options = in_format(OPTIONS, kv_format, made(variant)[0])
    ours, theirs = NativeExecutor(*made(variant), options), ReferenceExecutor(*made(variant), options)
    first, second = tokens(311), tokens(20, 1)
    near, far = [*range(40, 60)], [7, 3]
    for parts in (
        [part(variant, first[:290], 0, near)],
        [part(variant, second[:19], 0, far), part(variant, first[290:310], 290, near)],
        [part(variant, first[310:], 310, near), part(variant, second[19:], 19, far)],
    ):
        out, expected = attend(ours, *parts), attend(theirs, *parts)
        if kv_format is KVFormat.FP32:
            np.testing.assert_allclose(out, expected, atol=1e-5, rtol=1e-4)
        else:  # a sum in another order may round to the other number of the page's format
            error = np.abs(out - expected)
            assert (np.median(error) < 5e-5, error.max() < 0.02) == (True, True)


@pytest.mark.parametrize("kv_format", list(KVFormat))
@variants
def test_prefill_decode_chunks_and_threads_make_the_same_bits(isa: str, kv_format: KVFormat, variant: Variant) -> None:
    text, pages = tokens(300), [*range(20, 1, -1)]
    options = in_format(OPTIONS, kv_format, made(variant)[0])
    whole = attend(NativeExecutor(*made(variant), options), part(variant, text, 0, pages))
    for threads in (1, 3):
        executor = NativeExecutor(*made(variant), replace(options, threads=threads))
        attend(executor, part(variant, text[:284], 0, pages))
        for i in range(284, 300):  # one by one: blocks of the few rows are shared among threads
            row = attend(executor, part(variant, text[i : i + 1], i, pages))
            assert row.tobytes() == whole[i - 284 : i - 283].tobytes(), (threads, i)
    executor = NativeExecutor(*made(variant), options)
    for start, end in ((0, 5), (5, 128), (128, 200), (200, 287), (287, 300)):
        chunk = attend(executor, part(variant, text[start:end], start, [*range(50, 69)]))
    assert chunk.tobytes() == whole[3:].tobytes()


def executors(v: Variant, weights: dict[str, Weight], options: ExecutorOptions) -> list[Executor]:
    ours = NativeExecutor(made(v)[0], weights, options)
    if options.kv_format.integer:  # NumPy's integers know no NaN
        return [ours]
    return [ours, ReferenceExecutor(made(v)[0], weights, options)]


@pytest.mark.parametrize("kv_format", list(KVFormat))
@pytest.mark.parametrize("of", ["key", "value"])
def test_what_left_the_window_has_no_weight_at_all(isa: str, kv_format: KVFormat, of: str) -> None:
    """A key or value that is not finite: whoever sees it is not finite, the next row is."""
    v = VARIANTS["window of some tiles"]
    weights = dict(made(v)[1])
    damaged = np.array(weights["x"].data)
    damaged[30, (v.heads + (v.kv_heads if of == "value" else 0)) * v.head_dim + 5] = np.nan
    weights["x"] = fp32("x", damaged)
    text = tokens(170)
    text[100] = 30
    for executor in executors(v, weights, in_format(OPTIONS, kv_format, made(v)[0])):
        out = attend(executor, Part(text, 0, range(1, 12)), rows=[99, 100, 139, 140, 169])
        assert [bool(np.isfinite(row).all()) for row in out] == [True, False, False, True, True]


def test_scaled_embeddings(isa: str) -> None:
    table = fp32("x", np.random.default_rng(0).standard_normal((8, 34), np.float32))
    plain = program([], [table], buffer("x", 34))
    scaled = replace(plain, ops=(replace(plain.ops[0], scale=25.3), *plain.ops[1:]))
    assert isinstance(scaled.ops[0], Embed)
    for executor in (NativeExecutor, ReferenceExecutor):
        out = executor(scaled, named([table]), OPTIONS).run(rows_step([3, 1])).logits
        np.testing.assert_array_equal(out, table.data[[3, 1]] * np.float32(25.3))


@pytest.mark.parametrize("fused", [False, True])
def test_gelu(isa: str, fused: bool) -> None:
    rng = np.random.default_rng(1)
    x = fp32("x", rng.standard_normal((30, 64), np.float32))
    weight = fp32("w", rng.standard_normal((60, 64), np.float32))
    up = buffer("gate_up", 60 if fused else 64)
    out = buffer("out", up.width // 2)
    ops = [Linear(up, buffer("x", 64), "w"), Glu(out, up, "gelu_tanh")] if fused else [
        Glu(out, buffer("x", 64), "gelu_tanh")
    ]  # fmt: skip
    weights = [x, weight] if fused else [x]
    built = program(ops, weights, out)
    ours = NativeExecutor(built, named(weights), replace(OPTIONS, max_sequences=30)).run(rows_step(range(30))).logits
    rows = x.data.astype(np.float64) @ (weight.data.T.astype(np.float64) if fused else np.eye(64))
    gate, scale = np.split(rows, 2, axis=1)
    expected = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * scale
    assert ours is not None
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=1e-5)
