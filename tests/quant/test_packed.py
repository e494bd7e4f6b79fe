"""compressed-tensors' packed integers, packed here bit by bit."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.quant.convert import to_weight

from .stored_files import stored, words

BF16 = ml_dtypes.bfloat16
ALL = slice(None)


def packed(codes: np.ndarray, scale: np.ndarray, bits: int = 4, **more: np.ndarray) -> dict[str, np.ndarray]:
    shape = np.array(codes.shape, np.int64)
    return {"weight_packed": words(codes, bits), "weight_scale": scale, "weight_shape": shape, **more}


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 20),
    groups=st.integers(1, 4),
    size=st.sampled_from([8, 32, 64]),
    bits=st.sampled_from([4, 8]),
    zeros=st.booleans(),
    seed=st.integers(0, 99),
)
def test_round_trip(rows: int, groups: int, size: int, bits: int, zeros: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, (rows, groups * size))
    scale = rng.uniform(0.001, 0.01, (rows, groups)).astype(BF16)
    zero = rng.integers(0, 1 << bits, (rows, groups))
    more = {"weight_zero_point": words(zero.T, bits).T} if zeros else {}
    middle = zero.repeat(size, 1) if zeros else 1 << (bits - 1)
    expected = ((codes - middle).astype(BF16) * scale.repeat(size, 1)).astype(np.float32)
    read = stored(packed(codes, scale, bits, **more), quant_method="compressed-tensors")
    np.testing.assert_array_equal(read.values(ALL), expected)
    np.testing.assert_array_equal(read.values(slice(rows // 2, rows)), expected[rows // 2 :])


def test_codes_become_our_nibbles_without_rounding() -> None:
    codes = np.random.default_rng(0).integers(0, 16, (5, 128))
    scale = np.random.default_rng(1).uniform(0.001, 0.01, (5, 4)).astype(BF16)
    weight = to_weight(stored(packed(codes, scale)), None)
    assert weight.fmt is WeightFormat.INT4
    exact = (codes - 8) * scale.astype(np.float32).repeat(32, 1)
    np.testing.assert_array_equal(dequantise(weight), exact.astype(np.float32))


def test_tiny_scales_round_to_steps_of_half_precision() -> None:
    """bf16 reaches further down than fp16: below 2^-17 a scale may move by 2^-25, a weight by 2^-22."""
    codes = np.random.default_rng(0).integers(0, 16, (3, 32))
    scale = np.array([[2.0**-17 * 1.9921875], [2.0**-20 * 1.3], [1e-9]]).astype(BF16)
    weight = to_weight(stored(packed(codes, scale)), None)
    assert weight.fmt is WeightFormat.INT4
    error = np.abs(dequantise(weight) - (codes - 8) * scale.astype(np.float32)).max(axis=1)
    assert error[0] == 0
    assert error.max() <= 2.0**-22


def test_scales_beyond_half_precision_keep_their_range_in_bf16_only() -> None:
    read = stored(packed(np.full((1, 32), 9), np.full((1, 1), 1e6, BF16)))
    assert read.grid() is None
    assert to_weight(read, WeightFormat.BF16).fmt is WeightFormat.BF16
    wide = packed(np.full((1, 32), 9), np.full((1, 1), 6e4, BF16), weight_zero_point=words(np.full((1, 1), 3), 4))
    assert stored(wide).grid() is None  # the minimum would be beyond
    assert stored(packed(np.full((1, 32), 9), np.full((1, 1), 6e4, BF16))).grid() is WeightFormat.INT4


def test_inputs_grouped_by_importance() -> None:
    rng = np.random.default_rng(2)
    codes, order = rng.integers(0, 16, (4, 64)), rng.integers(0, 2, 64)
    scale = rng.uniform(0.001, 0.01, (4, 2)).astype(BF16)
    expected = ((codes - 8).astype(BF16) * scale[:, order]).astype(np.float32)
    read = stored(packed(codes, scale, weight_g_idx=order.astype(np.int32)))
    np.testing.assert_array_equal(read.values(ALL), expected)
    assert read.grid() is None
    unset = stored(packed(codes, scale, weight_g_idx=np.full(64, -1, np.int32)))
    assert unset.grid() is WeightFormat.INT4


CODES, SCALE = np.ones((12, 64), np.int64), np.ones((12, 2), BF16)
GOOD = packed(CODES, SCALE, weight_zero_point=words(np.ones((2, 12), np.int64), 4).T)


def but(**arrays: np.ndarray | None) -> dict[str, np.ndarray]:
    return {leaf: array for leaf, array in {**GOOD, **arrays}.items() if array is not None}


WRONG = {
    "no scale": (but(weight_scale=None), r"no tensor layer\.proj\.weight_scale"),
    "no shape": (but(weight_shape=None), r"no tensor layer\.proj\.weight_shape"),
    "a float shape": (but(weight_shape=np.ones(2, np.float32)), "weight_shape is stored as F32, not as I32 or I64"),
    "a negative shape": (but(weight_shape=np.array([12, -64])), r"weight_shape holds \[12, -64\]"),
    "an empty shape": (but(weight_shape=np.array([0, 64])), r"weight_shape holds \[0, 64\]"),
    "a shape of three": (but(weight_shape=np.array([12, 8, 8])), r"weight_shape holds \[12, 8, 8\]"),
    "another shape": (but(weight_shape=np.array([12, 1 << 40])), "weight_packed has shape"),
    "rows that do not fit": (but(weight_shape=np.array([13, 64])), "weight_scale has shape"),
    "float words": (but(weight_packed=np.ones((12, 8), np.float32)), "weight_packed is stored as F32"),
    "an integer scale": (but(weight_scale=np.ones((12, 2), np.int8)), "weight_scale is stored as I8"),
    "groups that do not divide": (
        but(weight_scale=np.ones((12, 3), BF16), weight_zero_point=None),
        "has 3 scales a row",
    ),
    "more groups than inputs": (but(weight_scale=np.ones((12, 65), BF16)), r"weight_scale has shape \[12, 65\]"),
    "no groups": (but(weight_scale=np.ones((12, 0), BF16)), r"weight_scale has shape \[12, 0\]"),
    "zero points of other rows": (but(weight_zero_point=np.ones((3, 2), np.int32)), r"ask for \[2, 2\]"),
    "zero points as bytes": (but(weight_zero_point=np.ones((12, 2), np.int8)), "weight_zero_point is stored as I8"),
    "an input of no group": (but(weight_g_idx=np.full(64, 7, np.int32)), "names groups 7 to 7, but there are 2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_is_named(case: str) -> None:
    leaves, message = WRONG[case]
    with pytest.raises(CheckpointError, match=message) as raised:
        stored(leaves)
    assert "layer.proj." in str(raised.value)


@pytest.mark.parametrize("bits", [2, 3, 6])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(UnsupportedError, match=rf"has weights of {bits} bits; .* 4 and 8 are readable"):
        stored(packed(np.ones((4, 64), np.int64), np.ones((4, 1), BF16), bits))
