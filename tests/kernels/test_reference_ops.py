"""Each op's definition against an independent expression of it."""

import math

import numpy as np
import pytest

from trimaran.kernels import reference_ops as ops
from trimaran.kernels.program import RopeSpec
from trimaran.kernels.rope import rope_table


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_rms_norm_gives_unit_mean_square_times_weight() -> None:
    x, weight = normal(3, 50), normal(50, seed=1)
    expected = [
        [w * v / math.sqrt(sum(u * u for u in row) / 50 + 0.1) for v, w in zip(row, weight, strict=True)] for row in x
    ]
    np.testing.assert_allclose(ops.rms_norm(x, weight, 0.1), expected, rtol=1e-12)


def test_linear_is_a_product_with_the_transpose() -> None:
    x, weight, bias = normal(4, 6), normal(5, 6, seed=1), normal(5, seed=2)
    np.testing.assert_allclose(ops.linear(x, weight, bias), np.einsum("ti,oi->to", x, weight) + bias, rtol=1e-12)


def test_rows_of_linear_have_the_same_bits_alone_and_together() -> None:
    x, weight = normal(33, 576).astype(np.float32), normal(200, 576, seed=1).astype(np.float32)
    together = ops.linear(x, weight, None)
    alone = np.concatenate([ops.linear(row[None], weight, None) for row in x])
    assert together.tobytes() == alone.tobytes()


def test_quantised_rows_by_hand() -> None:
    row = np.zeros((1, 64), np.float32)
    row[0, :6] = [-4.0, 2.0, 1.0, 0.0, 4 * 0.5 / 127, 4 * 1.5 / 127]
    out = ops.through_int8(row)
    expected = np.array([-127, 64, 32, 0, 0, 2], np.float32)  # 63.5, 0.5 and 1.5 go to the even neighbour
    assert out[0, :6].tolist() == (expected * (np.float32(4) / 127)).tolist()
    assert out[0, 32:].tolist() == [0] * 32  # the second group is all zeros


def test_int8_activations_stay_within_half_a_step() -> None:
    x = normal(5, 96).astype(np.float32)
    step = np.repeat(np.abs(x.reshape(5, 3, 32)).max(-1) / 127, 32, axis=-1)
    error = np.abs(ops.through_int8(x) - x)
    assert (error <= step * 0.5001).all()
    assert error.max() > 0


def test_wide_activations_stay_within_a_256th_of_that() -> None:
    groups = normal(5, 96).reshape(5, 3, 32)
    x = (groups / np.abs(groups).max(axis=-1, keepdims=True)).reshape(5, 96)  # none is much finer than the others
    step = np.full_like(x, 1 / 127 / 256)
    error = np.abs(ops.through_int8(x, wide=True) - x) / step
    assert error.max() < 1.5001  # a remainder of 128 does not fit its int8
    assert 0 < np.median(error) < 0.3


def test_only_the_coarser_groups_of_a_wide_row_keep_what_rounding_leaves() -> None:
    x = normal(5, 96)
    x[:, 32:64] *= 20
    narrow, wide = ops.through_int8(x), ops.through_int8(x, wide=True)
    fine = np.r_[:32, 64:96]
    assert (wide[:, fine] == narrow[:, fine]).all()
    assert np.abs(wide - x)[:, 32:64].max() < np.abs(narrow - x)[:, 32:64].max() / 50


def test_rotation_turns_each_pair_as_a_complex_number() -> None:
    heads, dims, position = normal(1, 2, 10), 8, 5
    cos, sin = (table[[position]].astype(np.float64) for table in rope_table(RopeSpec(100.0, dims), 6))
    out = ops.rotate(heads, cos, sin)
    for head in range(2):
        for i in range(4):
            turned = complex(heads[0, head, i], heads[0, head, i + 4]) * np.exp(
                1j * position * 100.0 ** (-2 * i / dims)
            )
            assert complex(out[0, head, i], out[0, head, i + 4]) == pytest.approx(turned, abs=1e-6)
    np.testing.assert_array_equal(out[..., dims:], heads[..., dims:])


def test_attention_shares_kv_heads_among_neighbouring_query_heads() -> None:
    q, keys, values = normal(6, 4), normal(7, 2, 4, seed=1), normal(7, 2, 4, seed=2)
    out = ops.attend(q, keys, values, 0.3)
    for head in range(6):
        scores = np.array([0.3 * sum(q[head] * keys[token, head // 3]) for token in range(7)])
        weights = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(out[head], sum(w * values[t, head // 3] for t, w in enumerate(weights)), rtol=1e-12)


def test_hadamard_keeps_products_and_spreads_a_peak() -> None:
    a, b = normal(3, 48), normal(3, 48, seed=1)
    np.testing.assert_allclose(np.sum(ops.hadamard(a, 16) * ops.hadamard(b, 16), -1), np.sum(a * b, -1), rtol=1e-12)
    peak = np.zeros((1, 32))
    peak[0, 5] = 4
    assert np.abs(ops.hadamard(peak, 16)).tolist() == [[1.0] * 16 + [0.0] * 16]
    np.testing.assert_allclose(np.abs(ops.hadamard(peak, 32)), np.full((1, 32), 4 / 32**0.5))
    np.testing.assert_allclose(ops.hadamard(ops.hadamard(a, 16), 16), a, atol=1e-12)


def test_int8_by_hand() -> None:
    q, scale = ops.to_int8(np.array([[-4.0, 2.0, 1.0, 0.0], [0.0] * 4]))
    assert q.tolist() == [[-127, 64, 32, 0], [0] * 4]  # 63.5 and 31.75
    assert scale.tolist() == [4 / 127, 0]


def test_int4_by_hand() -> None:
    q, scale = ops.value_to_int4(np.array([[-7.5, 7.5, 0.9, 0.0], [0.0] * 4]), 4)
    assert q.tolist() == [[0, 15, 8, 8], [8] * 4]
    assert scale.tolist() == [[1], [0]]
    q, scale = ops.value_to_int4(np.array([[-7.5, 7.5, 15.0, 0.0, 0.0]]), 2)  # the last has a scale for itself
    assert (q.tolist(), scale.tolist()) == ([[0, 15, 15, 8, 8]], [[1, 2, 0]])
    keys = np.array([[100.0 + i for i in range(16)] * 2 + [-3.0] * 16])
    codes, terms = ops.key_to_int4(keys)
    assert codes.tolist() == [[*range(16)] * 2 + [0] * 16]
    assert terms.tolist() == [[[1, 100], [0, -3]]]  # groups of their own, the second of equal numbers


def test_fine_int4_keys_by_hand() -> None:
    key = np.concatenate([np.arange(16.0) - 127, np.full(16, -3.5)])[None]
    codes, terms, units = ops.key_to_fine_int4(key)
    assert units.tolist() == [[ops.to_bf16(np.array(1 / 255)), 1]]
    assert terms.tolist() == [[[255, 1], [math.ceil(0.5 / 15 / units[0, 0]), 124]]]  # -127 and -4, which is below -3.5
    scales, minima = terms[0, :, 0] * units[0, 0], terms[0, :, 1] - 128
    np.testing.assert_allclose(codes * np.repeat(scales, 16) + np.repeat(minima, 16), key, atol=scales.max() / 2)
    for worst in (np.zeros((1, 32)), np.full((1, 32), 5.0)):
        codes, terms, units = ops.key_to_fine_int4(worst)
        each = np.repeat((terms - [0, 128]) * units[:, None], 16, axis=1)
        np.testing.assert_allclose(codes * each[..., 0] + each[..., 1], worst, atol=0.002)


def test_e4m3_uses_its_whole_range() -> None:
    x, scale = ops.to_e4m3(np.array([[-2.0, 1.0], [0.0, 0.0]]))
    assert (x.tolist(), scale.tolist()) == ([[-448, 224], [0, 0]], [2 / 448, 0])


def test_int8_attention_is_close_to_attention() -> None:
    q, keys, values = normal(6, 32), normal(300, 2, 32, seed=1), normal(300, 2, 32, seed=2)
    values[0] /= 100  # what the first token says is little, but everybody looks at it
    keys[0] = 3 * q[:1]
    rounded_keys, key_scales = ops.to_int8(ops.hadamard(keys, 32))
    rounded, scales = ops.to_int8(values)
    turned = ops.hadamard(q, 32)
    out = ops.attend_integers(turned, rounded_keys * key_scales[..., None], rounded, scales[..., None], 32**-0.5, 32)
    error = out - ops.attend(q, keys, values, 32**-0.5)
    assert 0 < np.abs(error).max() < 0.01


def test_attention_of_large_scores_stays_finite() -> None:
    q = np.full((1, 4), 1e4, np.float32)
    out = ops.attend(q, np.stack([q, -q]), np.array([[[1.0] * 4], [[2.0] * 4]], np.float32), 1.0)
    assert out.tolist() == [[1.0] * 4]


def test_swiglu_gates_the_second_half() -> None:
    x = normal(3, 8)
    expected = [[g / (1 + math.exp(-g)) * u for g, u in zip(row[:4], row[4:], strict=True)] for row in x]
    np.testing.assert_allclose(ops.glu(x, "silu"), expected, rtol=1e-12)
    assert ops.glu(np.array([[-1000.0, 1.0]], np.float32), "silu").tolist() == [[0.0]]
