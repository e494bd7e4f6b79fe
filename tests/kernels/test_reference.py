"""The reference executor: what a row computes must not depend on how steps are cut, nor on who else is in them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import CheckpointError
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.open import open_executor
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.step import ExecutorOptions

from .tiny import CONFIG, Rows, program, random_tokens, random_weights, step

EXACT = ExecutorOptions(
    kv_format=KVFormat.FP32,
    activations=ActivationFormat.FP32,
    num_pages=40,
    max_rows=160,
    max_sequences=160,
)
FAST = ExecutorOptions(num_pages=40, max_rows=160, max_sequences=160)  # bf16 pages, int8 activations
PROMPT = random_tokens(45)
PAGES = [7, 3, 12]


def executor(
    fmt: WeightFormat = WeightFormat.FP32,
    options: ExecutorOptions = EXACT,
    compute: type[np.float32] | type[np.float64] = np.float32,
) -> ReferenceExecutor:
    return ReferenceExecutor(program(), random_weights(program(), fmt), options, compute)


def logits(runner: ReferenceExecutor, *sequences: Rows) -> np.ndarray:
    out = runner.run(step(*sequences)).logits
    assert out is not None
    return out.copy()


def in_chunks(
    runner: ReferenceExecutor, tokens: Sequence[int], pages: Sequence[int], cuts: Sequence[int]
) -> np.ndarray:
    bounds = [0, *cuts, len(tokens)]
    parts = [Rows(tokens[a:b], a, pages) for a, b in pairwise(bounds)]
    return np.concatenate([logits(runner, part) for part in parts])


def plain_forward(tokens: Sequence[int]) -> np.ndarray:
    """The whole model in float64 as one expression, with full matrices and no cache."""
    w = {name: dequantise(weight).astype(np.float64) for name, weight in random_weights(program()).items()}
    c, count = CONFIG, len(tokens)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + c.norm_eps) * w[name]

    def turn(x: np.ndarray) -> np.ndarray:
        angles = np.arange(count)[:, None] * c.rope.theta ** (-np.arange(0, 16, 2) / 16)
        z = (x[..., :8] + 1j * x[..., 8:]) * np.exp(1j * angles)[:, None]
        return np.concatenate([z.real, z.imag], -1)

    x = w["model.embed_tokens"][list(tokens)]
    for i in range(c.layers):
        p = f"model.layers.{i}."
        qkv = norm(x, p + "input_layernorm") @ w[p + "self_attn.qkv"].T + w[p + "self_attn.qkv.bias"]
        q, k, v = np.split(qkv.reshape(count, 8, 16), [4, 6], axis=1)
        q, k, v = turn(q), np.repeat(turn(k), 2, axis=1), np.repeat(v, 2, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / 4 + np.triu(np.full((count, count), -np.inf), 1)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        o = np.einsum("hqk,khd->qhd", weights, v).reshape(count, -1)
        x = x + o @ w[p + "self_attn.o_proj"].T + w[p + "self_attn.o_proj.bias"]
        gate, up = np.split(norm(x, p + "post_attention_layernorm") @ w[p + "mlp.gate_up"].T, 2, axis=-1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj"].T
    return norm(x, "model.norm") @ w["lm_head"].T


def test_the_program_computes_the_model() -> None:
    expected = plain_forward(PROMPT)
    np.testing.assert_allclose(logits(executor(compute=np.float64), Rows(PROMPT, 0, PAGES)), expected, atol=1e-5)
    np.testing.assert_allclose(logits(executor(), Rows(PROMPT, 0, PAGES)), expected, atol=1e-4)


@pytest.mark.parametrize("options", [EXACT, FAST], ids=["exact", "fast"])
@pytest.mark.parametrize("cuts", [[1, 2, 3], [16, 32], [7, 31], list(range(1, 45))], ids=str)
def test_chunks_do_not_change_a_bit(options: ExecutorOptions, cuts: list[int]) -> None:
    whole = logits(executor(WeightFormat.INT8, options), Rows(PROMPT, 0, PAGES))
    assert in_chunks(executor(WeightFormat.INT8, options), PROMPT, PAGES, cuts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("options", [EXACT, FAST], ids=["exact", "fast"])
def test_neighbours_do_not_change_a_bit(options: ExecutorOptions) -> None:
    alone = logits(executor(WeightFormat.INT4Z, options), Rows(PROMPT, 0, PAGES))
    runner = executor(WeightFormat.INT4Z, options)
    before, after = Rows(random_tokens(20, 2), 0, [1, 2]), Rows(random_tokens(50, 3), 0, [4, 5, 6, 8])
    together = logits(runner, before, Rows(PROMPT, 0, PAGES), after)
    assert together[20:65].tobytes() == alone.tobytes()


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 44)).map(sorted),
    lengths=st.lists(st.integers(1, 24), min_size=2, max_size=2),
    place=st.integers(0, 2),
)
def test_any_cut_among_any_neighbours(cuts: list[int], lengths: list[int], place: int) -> None:
    runner = executor(WeightFormat.INT4, FAST)
    whole = logits(runner, Rows(PROMPT, 0, PAGES))
    again, at = [5, 30, 9], 0
    for end in [*cuts, len(PROMPT)]:
        others = [Rows(random_tokens(n, n), 0, [20 + 2 * i, 21 + 2 * i]) for i, n in enumerate(lengths)]
        first = sum(lengths[:place])
        out = logits(runner, *others[:place], Rows(PROMPT[at:end], at, again), *others[place:])
        assert out[first : first + end - at].tobytes() == whole[at:end].tobytes()
        at = end


def test_decode_of_several_sequences_continues_each_from_its_pages() -> None:
    runner = executor()
    first, second = random_tokens(20, 2), random_tokens(33, 3)
    logits(runner, Rows(first[:-1], 0, [1, 2]), Rows(second[:-1], 0, [9, 4, 6]))
    both = logits(runner, Rows(first[-1:], 19, [1, 2]), Rows(second[-1:], 32, [9, 4, 6]))
    np.testing.assert_allclose(both[0], plain_forward(first)[-1], atol=1e-4)
    np.testing.assert_allclose(both[1], plain_forward(second)[-1], atol=1e-4)


def test_a_shared_prefix_page_serves_two_sequences() -> None:
    runner = executor()
    first, second = [*PROMPT[:16], 5, 6], [*PROMPT[:16], 7, 8]
    logits(runner, Rows(first, 0, [1, 2]))
    shared = logits(runner, Rows(second[16:], 16, [1, 3]))
    assert shared.tobytes() == logits(executor(), Rows(second, 0, [4, 5]))[16:].tobytes()


def test_only_the_pages_of_the_sequence_are_written() -> None:
    runner = executor()
    parts = runner._heads[0].stores
    before = [part.arrays[0].copy() for part in parts]
    logits(runner, Rows(PROMPT[:20], 0, [7, 3]))
    for part, old in zip(parts, before, strict=True):
        changed = (part.arrays[0] != old).any(axis=(1, 3, 4))  # [pages, page_size]
        assert {(int(p), int(t)) for p, t in np.argwhere(changed)} == {(7, t) for t in range(16)} | {
            (3, t) for t in range(4)
        }


def test_rows_on_the_null_page_leave_the_others_alone() -> None:
    alone = logits(executor(), Rows(PROMPT, 0, PAGES))
    null = Rows(random_tokens(20, 4), 0, [0, 0])
    together = logits(executor(), null, Rows(PROMPT, 0, PAGES), null)
    assert together[20:65].tobytes() == alone.tobytes()


def test_logits_of_chosen_rows_only() -> None:
    everything = logits(executor(), Rows(PROMPT, 0, PAGES))
    some = executor().run(step(Rows(PROMPT, 0, PAGES), logits_rows=[3, 44]))
    assert some.logits is not None
    assert some.logits.tobytes() == everything[[3, 44]].tobytes()
    assert some.greedy.tolist() == everything[[3, 44]].argmax(-1).tolist()


def test_a_chunk_that_needs_no_logits() -> None:
    out = executor(WeightFormat.INT8, FAST).run(step(Rows(PROMPT, 0, PAGES), logits_rows=[]))
    assert out.greedy.shape == (0,)


def test_greedy_alone_when_logits_are_not_wanted() -> None:
    out = executor().run(step(Rows(PROMPT, 0, PAGES), want_logits=False))
    assert out.logits is None
    assert out.greedy.dtype == np.int32
    assert out.greedy.tolist() == logits(executor(), Rows(PROMPT, 0, PAGES)).argmax(-1).tolist()


@pytest.mark.parametrize("fmt", list(WeightFormat))
def test_every_weight_format_runs_on_its_dequantised_numbers(fmt: WeightFormat) -> None:
    weights = random_weights(program(), fmt)
    dense = {
        name: type(weight)(name, WeightFormat.FP32, weight.shape, dequantise(weight))
        for name, weight in weights.items()
    }
    held = ReferenceExecutor(program(), weights, EXACT)
    assert (
        logits(held, Rows(PROMPT, 0, PAGES)).tobytes()
        == logits(ReferenceExecutor(program(), dense, EXACT), Rows(PROMPT, 0, PAGES)).tobytes()
    )


def test_int8_activations_only_meet_quantised_weights() -> None:
    fast = ExecutorOptions(kv_format=KVFormat.FP32, num_pages=40, max_rows=160, max_sequences=160)
    for fmt, same in ((WeightFormat.FP32, True), (WeightFormat.BF16, True), (WeightFormat.INT8, False)):
        exact = logits(executor(fmt), Rows(PROMPT, 0, PAGES))
        rounded = logits(executor(fmt, fast), Rows(PROMPT, 0, PAGES))
        assert (exact.tobytes() == rounded.tobytes()) is same, fmt
        np.testing.assert_allclose(rounded, exact, atol=0.5)


def test_bf16_pages_round_and_fp32_pages_do_not() -> None:
    assert all(part.arrays[0].itemsize == 2 for part in executor(options=FAST)._heads[0].stores)
    close = logits(executor(options=FAST), Rows(PROMPT, 0, PAGES))
    exact = logits(executor(), Rows(PROMPT, 0, PAGES))
    assert 1e-4 < np.abs(close - exact).max() < 0.2


def test_int8_pages_are_close_and_hold_a_scale_per_token_and_head() -> None:
    runner = executor(options=replace(EXACT, kv_format=KVFormat.INT8))
    exact = logits(executor(), Rows(PROMPT, 0, PAGES))
    assert 1e-4 < np.abs(logits(runner, Rows(PROMPT, 0, PAGES)) - exact).max() < 0.4
    assert runner.kv_bytes == 40 * program().groups[0].page_bytes(KVFormat.INT8, 16)


def test_memory_is_reported_in_the_bytes_of_the_formats() -> None:
    runner = executor(WeightFormat.INT4Z)
    matrices = [spec for spec in program().weights.values() if spec.matrix]
    vectors = sum(spec.shape[0] * 4 for spec in program().weights.values() if not spec.matrix)
    packed = sum(spec.shape[0] * WeightFormat.INT4Z.row_bytes(spec.shape[1]) for spec in matrices)
    assert runner.weight_bytes == packed + vectors
    assert runner.kv_bytes == 40 * program().groups[0].page_bytes(KVFormat.FP32, 16)


def test_a_tied_matrix_counts_once() -> None:
    weights = random_weights(program())
    weights["lm_head"] = weights["model.embed_tokens"]
    untied = executor().weight_bytes
    assert ReferenceExecutor(program(), weights, EXACT).weight_bytes == untied - 80 * 64 * 4


def test_it_opens_by_name_and_closes_twice() -> None:
    runner = open_executor("reference", program(), random_weights(program()), EXACT)
    assert (runner.name, runner.isa, runner.num_pages, runner.page_size) == ("reference", "numpy", (40,), 16)
    runner.close()
    runner.close()


def test_a_missing_weight_is_named() -> None:
    weights = random_weights(program())
    del weights["model.layers.1.mlp.down_proj"]
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.down_proj is missing"):
        ReferenceExecutor(program(), weights, EXACT)
