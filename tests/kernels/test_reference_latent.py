"""Latent attention and the indexer as the reference defines them, held against their expanded form."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from trimaran.base.errors import ConfigError, UnsupportedError
from trimaran.base.formats import LATENT_FORMATS, ActivationFormat, KVFormat
from trimaran.kernels import reference_latent
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.rope import rope_table
from trimaran.kernels.step import ExecutorOptions

from .latent import EPS, Shape, attention, logits, program, selection, tables, tokens
from .single_op import Part

OPTIONS = ExecutorOptions(
    kv_format=KVFormat.FP32, activations=ActivationFormat.FP32, num_pages=60, max_rows=320, max_sequences=320
)
DENSE = Shape(heads=5, latent=64, rope=16, nope=24, value=40)
SPARSE = replace(DENSE, top_k=7)
TEXT = tokens(45)


def reference(shape: Shape, options: ExecutorOptions = OPTIONS) -> ReferenceExecutor:
    return ReferenceExecutor(*program(shape, attention(shape), tables(shape)), options)


def expanded(shape: Shape, text: list[int], seen: np.ndarray | None = None) -> np.ndarray:
    """The attention as models are trained: keys and values of every head, made from the latents."""
    made = {name: array.astype(np.float64) for name, array in tables(shape).items()}
    count = len(text)
    cos, sin = rope_table(shape.spec, count)
    q = made["q"][text].reshape(count, shape.heads, -1)
    latent, shared = np.split(made["kv"][text], [shape.latent], axis=1)
    latent = made["norm"] * latent / np.sqrt((latent**2).mean(-1, keepdims=True) + EPS)

    def turn(x: np.ndarray) -> np.ndarray:
        a, b = np.split(x, 2, axis=-1)
        z = (a + 1j * b) * (cos + 1j * sin).reshape(count, *[1] * (x.ndim - 2), -1)
        return np.concatenate([z.real, z.imag], axis=-1)

    k_up = made["k_up"].reshape(shape.heads, shape.latent, shape.nope)
    v_up = made["v_up"].reshape(shape.heads, shape.value, shape.latent)
    keys = np.einsum("tc,hcn->thn", latent, k_up)
    shared_keys = np.repeat(turn(shared)[:, None], shape.heads, axis=1)
    queries = np.concatenate([q[..., : shape.nope], turn(q[..., shape.nope :])], axis=-1)
    scores = np.einsum("qhd,khd->hqk", queries, np.concatenate([keys, shared_keys], axis=-1)) * shape.scale
    scores += np.triu(np.full((count, count), -np.inf), 1)
    if seen is not None:
        scores[:, ~seen] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    values = np.einsum("tc,hvc->thv", latent, v_up)
    return np.einsum("hqk,khv->qhv", weights, values).reshape(count, -1)


def chosen(shape: Shape, text: list[int]) -> np.ndarray:
    """Which tokens ``[row, token]`` the indexer chooses, counted one by one."""
    made = {name: array.astype(np.float64) for name, array in tables(shape).items()}
    cos, sin = (table.astype(np.float64) for table in rope_table(replace(shape.spec, dims=16), len(text)))

    def turn(x: np.ndarray, position: int) -> np.ndarray:
        c, s = cos[position], sin[position]
        return np.concatenate([x[:8] * c - x[8:16] * s, x[8:16] * c + x[:8] * s, x[16:]])

    keys = []
    for position, token in enumerate(text):
        k = made["ik"][token] - made["ik"][token].mean()
        keys.append(turn(made["k_norm"] * k / np.sqrt((k**2).mean() + EPS) + made["k_norm.bias"], position))
    result = np.zeros((len(text), len(text)), bool)
    for row, token in enumerate(text):
        scores = []
        for s in range(row + 1):
            total = 0.0
            for h, q in enumerate(made["iq"][token].reshape(shape.index_heads, -1)):
                weight = made["iw"][token, h] / shape.index_heads**0.5
                total += weight * max(0.0, turn(q, row) @ keys[s] / shape.index_dim**0.5)
            scores.append(total)
        best = sorted(range(row + 1), key=lambda s: (-scores[s], s))
        result[row, best[: shape.top_k]] = True
    return result


def test_the_absorbed_form_is_the_expanded_one() -> None:
    out = logits(reference(DENSE), Part(TEXT, 0, [3, 1, 2]))
    np.testing.assert_allclose(out, expanded(DENSE, TEXT), atol=1e-5)


def test_sparse_attention_sees_the_chosen_tokens_alone() -> None:
    out = logits(reference(SPARSE), Part(TEXT, 0, [3, 1, 2]))
    np.testing.assert_allclose(out, expanded(SPARSE, TEXT, chosen(SPARSE, TEXT)), atol=1e-5)
    assert np.abs(out - expanded(SPARSE, TEXT)).max() > 0.1  # it does not see the others


def test_the_choice_is_the_largest_scores_in_ascending_order() -> None:
    runner = ReferenceExecutor(*program(SPARSE, selection(SPARSE), tables(SPARSE)), OPTIONS)
    out = logits(runner, Part(TEXT, 0, [3, 1, 2]))[:, : SPARSE.top_k]
    for row, wanted in zip(out, chosen(SPARSE, TEXT), strict=True):
        positions = np.flatnonzero(wanted)
        assert row.tolist() == [*positions, *[-1] * (SPARSE.top_k - len(positions))]


def test_of_equal_scores_the_lower_positions_are_chosen() -> None:
    """All tokens are the same and rope moves none of them: scores are equal."""
    made = tables(SPARSE)
    made["iq"][:, :] = 0
    runner = ReferenceExecutor(*program(SPARSE, selection(SPARSE), made), OPTIONS)
    assert logits(runner, Part(TEXT, 0, [3, 1, 2]))[-1, : SPARSE.top_k].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert reference_latent.largest(np.array([2, np.nan, 3, 2, 3]), 3).tolist() == [0, 2, 4]


def test_choosing_every_token_is_attention_of_all() -> None:
    every = replace(DENSE, top_k=64)
    out = logits(reference(every), Part(TEXT, 0, [3, 1, 2]))
    assert out.tobytes() == logits(reference(DENSE), Part(TEXT, 0, [3, 1, 2])).tobytes()


@pytest.mark.parametrize("shape", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("kv_format", LATENT_FORMATS)
def test_chunks_and_neighbours_do_not_change_a_bit(shape: Shape, kv_format: KVFormat) -> None:
    options = replace(OPTIONS, kv_format=kv_format)
    whole = logits(reference(shape, options), Part(TEXT, 0, [3, 1, 2]))
    runner = reference(shape, options)
    for start, end in pairwise([0, 5, 17, 40, 41, 42, 45]):
        parts = Part(tokens(3, start), 0, [20]), Part(TEXT[start:end], start, [9, 12, 7])
        assert logits(runner, *parts)[3:].tobytes() == whole[start:end].tobytes(), start


@pytest.mark.parametrize("kv_format", LATENT_FORMATS)
def test_pages_take_what_formats_say(kv_format: KVFormat) -> None:
    runner = reference(SPARSE, replace(OPTIONS, kv_format=kv_format, page_size=32))
    made, _ = program(SPARSE, attention(SPARSE), tables(SPARSE))
    assert runner.kv_bytes == 60 * made.groups[0].page_bytes(kv_format, 32)


@pytest.mark.parametrize("kv_format", [fmt for fmt in KVFormat if fmt not in LATENT_FORMATS])
@pytest.mark.parametrize("executor", [ReferenceExecutor, NativeExecutor])
def test_other_formats_are_refused(kv_format: KVFormat, executor: type[ReferenceExecutor | NativeExecutor]) -> None:
    with pytest.raises(ConfigError, match=f"{kv_format} pages cannot hold the latents"):
        executor(*program(DENSE, attention(DENSE), tables(DENSE)), replace(OPTIONS, kv_format=kv_format))


@pytest.mark.parametrize(
    ("kv_format", "error"),
    [
        (KVFormat.BF16, 0.02),
        (KVFormat.INT8, 0.03),
        (KVFormat.FP8, 0.05),
        (KVFormat.INT4, 0.2),
        (KVFormat.INT8_INT4, 0.2),
    ],
)
def test_coarser_pages_cost_what_their_rounding_does(kv_format: KVFormat, error: float) -> None:
    exact = logits(reference(DENSE), Part(TEXT, 0, [3, 1, 2]))
    out = logits(reference(DENSE, replace(OPTIONS, kv_format=kv_format)), Part(TEXT, 0, [3, 1, 2]))
    assert 0 < np.abs(out - exact).mean() < error * np.abs(exact).mean()


@pytest.mark.parametrize("kv_format", [fmt for fmt in LATENT_FORMATS if fmt not in (KVFormat.FP32, KVFormat.BF16)])
def test_quantised_pages_refuse_widths_that_are_no_16s(kv_format: KVFormat) -> None:
    with pytest.raises(UnsupportedError, match=f"{kv_format} pages .* 24"):
        reference(replace(DENSE, latent=24), replace(OPTIONS, kv_format=kv_format))
