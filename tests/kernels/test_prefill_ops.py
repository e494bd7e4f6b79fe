"""Rows of prompts and rows of generated tokens in one step, by ops of their own."""

from dataclasses import replace

import numpy as np
import pytest

from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.page_tags import PageTags, owner_number
from trimaran.kernels.prefill_ops import merge_weights, parts_of, programs_of, split_weights, with_prefill_ops
from trimaran.kernels.program import Attention, HeadNorm, Linear
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.step import ExecutorOptions, StepInputs
from trimaran.kernels.weights import Weight

from .tiny import CONFIG, Rows, program, random_tokens, random_weights, step

OPTIONS = ExecutorOptions(KVFormat.BF16, num_pages=24, max_rows=64, max_sequences=64, threads=2)
PLAIN = program()
DECODE = random_weights(PLAIN, WeightFormat.INT4)
PREFILL = {name: DECODE[name] if name == "lm_head" else weight for name, weight in random_weights(PLAIN).items()}
WEIGHTS = merge_weights(DECODE, PREFILL)
BOTH = with_prefill_ops(PLAIN, WEIGHTS)
EXECUTORS = [NativeExecutor, ReferenceExecutor]
FIRST, SECOND = Rows(random_tokens(20), 0, [1, 2]), Rows(random_tokens(9, seed=2), 0, [3, 4])


def test_only_weights_that_differ_have_two_names() -> None:
    renamed = [op for op in BOTH.prefill_ops if isinstance(op, Linear)]
    assert {op.weight.startswith("prefill:") for op in renamed if op.weight != "lm_head"} == {True}
    assert renamed[-1].weight == "lm_head"
    assert not [name for name in BOTH.weights if name.startswith("prefill:") and "norm" in name]
    assert [type(op) for op in BOTH.prefill_ops] == [type(op) for op in BOTH.ops]
    assert set(WEIGHTS) == set(BOTH.weights)
    assert with_prefill_ops(PLAIN, DECODE) is PLAIN
    assert merge_weights(DECODE, dict(DECODE)) == DECODE


def test_both_halves_are_found_again() -> None:
    decode, prefill = split_weights(WEIGHTS)
    assert decode == DECODE
    for name, weight in prefill.items():
        assert weight is (PREFILL if "prefill:" + name in WEIGHTS else DECODE)[name]
    assert [each.ops for each in programs_of(BOTH)] == [BOTH.ops, BOTH.prefill_ops]
    assert programs_of(PLAIN) == (PLAIN,)


def test_norms_of_heads_are_weights_too() -> None:
    made = program(replace(CONFIG, family="qwen3", attention_bias=False, qk_norm=True))
    weights = random_weights(made)
    norm = next(name for name in made.weights if name.endswith("q_norm"))
    other = {norm: Weight(norm, WeightFormat.FP32, weights[norm].shape, weights[norm].data + np.float32(1))}
    both = with_prefill_ops(made, merge_weights(weights, weights | other))
    norms = [op.q_norm for op in both.prefill_ops if isinstance(op, Attention)]
    assert isinstance(norms[0], HeadNorm)
    assert norms[0].weight == "prefill:" + norm


@pytest.fixture(params=EXECUTORS)
def kind(request: pytest.FixtureRequest) -> type[NativeExecutor] | type[ReferenceExecutor]:
    return request.param


def decoding(made: StepInputs, sequences: int | None) -> StepInputs:
    return replace(made, decoding=sequences)


def test_each_row_meets_its_own_weights(kind) -> None:
    """Beside each other in a step as by themselves, and as executors with one set of weights have it."""
    both, prefill = kind(BOTH, WEIGHTS, OPTIONS), kind(PLAIN, PREFILL, OPTIONS)
    decode = kind(PLAIN, DECODE, OPTIONS)
    first, same = (executor.run(decoding(step(FIRST), 0)).logits for executor in (both, prefill))
    np.testing.assert_array_equal(first, same)
    held = both.export_pages(0, np.array([1, 2], np.int32), KVFormat.BF16)
    decode.import_pages(0, np.array([1, 2], np.int32), held)

    one = Rows(random_tokens(3, seed=5), 20, [1, 2])
    mixed = both.run(decoding(step(one, SECOND), 1))
    logits, greedy = mixed.logits.copy(), mixed.greedy.copy()
    tolerance = 0 if kind is NativeExecutor else 1e-5  # NumPy's products depend on their shapes
    np.testing.assert_allclose(logits[:3], decode.run(step(one)).logits, atol=tolerance)
    np.testing.assert_allclose(logits[3:], prefill.run(step(SECOND)).logits, atol=tolerance)
    np.testing.assert_array_equal(greedy, logits.argmax(axis=1))
    assert len(greedy) == 12
    quick = both.run(decoding(step(one, SECOND, want_logits=False, logits_rows=[2, 11]), 1))
    np.testing.assert_array_equal(quick.greedy, greedy[[2, 11]])
    both.close()


def test_native_matches_reference() -> None:
    runs = []
    for kind in EXECUTORS:
        executor = kind(BOTH, WEIGHTS, OPTIONS)
        executor.run(decoding(step(FIRST), 0))
        runs.append(executor.run(decoding(step(Rows([7], 20, [1, 2]), SECOND), 1)).logits.copy())
        executor.close()
    np.testing.assert_allclose(runs[0], runs[1], atol=0.02, rtol=0.02)


@pytest.mark.parametrize("sequences", [None, -1, 3])
def test_a_step_that_does_not_tell_rows_apart_is_refused(kind, sequences) -> None:
    executor = kind(BOTH, WEIGHTS, OPTIONS)
    with pytest.raises(ValueError, match=f"decoding is {sequences}, not the first 0 to 2 sequences"):
        executor.run(decoding(step(FIRST, SECOND), sequences))
    assert executor.run(decoding(step(FIRST, SECOND), 0)).logits is not None
    executor.close()


def test_a_step_of_one_kind_is_one_part() -> None:
    made = step(FIRST, SECOND)
    for sequences, prefill in ((0, True), (2, False)):
        [part] = parts_of(decoding(made, sequences))
        assert (part.step.tokens is made.tokens, part.prefill) == (True, prefill)


def test_faulty_sequences_of_both_parts_are_named(kind) -> None:
    executor = kind(BOTH, WEIGHTS, replace(OPTIONS, page_tags=True))
    [held] = executor.page_tags
    parts = [Rows([3], 20, [1, 2]), Rows([4], 20, [3, 4]), Rows([5, 6], 0, [5]), Rows([7, 8], 0, [6])]
    numbers = np.array([owner_number(name) for name in "abcd"], np.uint64)
    made = step(*parts)
    expected = PageTags.of(*made.page_tables[0].shape)
    for slot, number, rows in zip(made.slots, numbers, parts, strict=True):
        for index, page in enumerate(rows.pages):
            held.tags[page] = expected.tags[slot, index] = 100 + page
            held.owners[page] = number
    whole = replace(made, expected=(expected,), readers=numbers, decoding=2)
    assert executor.run(whole).faulty == ()
    held.tags[[3, 6]] += 1
    assert executor.run(whole).faulty == (1, 3)
    executor.close()


def test_a_profile_tells_them_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRIMARAN_PROFILE", "1")
    executor = NativeExecutor(BOTH, WEIGHTS, OPTIONS)
    for _ in range(3):
        executor.run(decoding(step(FIRST), 0))
    executor.run(decoding(step(Rows([7], 20, [1, 2]), SECOND), 1))
    executor.close()
    said = capsys.readouterr().err
    assert "profile of generated tokens, steps of 1 row: 1 steps" in said
    assert "profile of prompts, steps of 2 to 64 rows: 4 steps, 17.2 rows on average" in said
