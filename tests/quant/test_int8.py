"""int8 weights: rounding, extremes and what is refused."""

import numpy as np
import pytest

from trimaran.base.errors import UnsupportedError
from trimaran.kernels.dequantise import dequantise
from trimaran.quant import int8


def test_values_are_rounded_to_the_nearest_step() -> None:
    values = np.random.default_rng(0).standard_normal((4, 96)).astype(np.float32)
    weight = int8.quantise("w", values)
    assert weight.scale is not None
    step = np.repeat(weight.scale.astype(np.float32), 32, axis=1)
    inside = np.abs(values) < 126.5 * step  # beyond, the stored scale may have been rounded down
    assert (np.abs(dequantise(weight) - values)[inside] <= 0.5001 * step[inside]).all()
    assert np.abs(dequantise(weight) - values).max() <= 0.6 * step.max()


def test_numbers_on_the_grid_come_back_exactly() -> None:
    q = np.random.default_rng(1).integers(-127, 128, (3, 64)).astype(np.float32)
    q[:, [0, 32]] = 127
    np.testing.assert_array_equal(dequantise(int8.quantise("w", q * np.float32(0.125))), q * 0.125)


def test_zeros_and_the_tiniest_groups() -> None:
    values = np.zeros((1, 64), np.float32)
    values[0, 32] = 1e-9  # its scale is no fp16 number
    assert dequantise(int8.quantise("w", values)).tolist() == [[0.0] * 64]


def test_a_width_that_has_no_whole_groups() -> None:
    with pytest.raises(UnsupportedError, match="attn has 48 columns"):
        int8.quantise("attn", np.zeros((2, 48), np.float32))


def test_numbers_beyond_half_precision_scales() -> None:
    for value in (1e7, np.inf, np.nan):
        with pytest.raises(UnsupportedError, match="attn holds numbers too large for fp16 scales, or not finite"):
            int8.quantise("attn", np.full((1, 32), value, np.float32))
