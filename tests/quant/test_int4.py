"""int4 weights: at least as close as GGUF's own rounding, exact on the grid."""

import gguf
import numpy as np
import pytest

from trimaran.kernels.dequantise import dequantise, pack_nibbles, unpack_nibbles
from trimaran.quant import int4

GAUSS = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
Q4_0, Q4_1 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1


def squared_error(values: np.ndarray) -> np.ndarray:
    return np.square(values - GAUSS).reshape(64, -1, 32).sum(-1)


@pytest.mark.parametrize(("quantise", "theirs"), [(int4.quantise, Q4_0), (int4.quantise_zero_point, Q4_1)])
def test_no_worse_than_gguf(quantise, theirs) -> None:
    ours = squared_error(dequantise(quantise("w", GAUSS)))
    other = squared_error(gguf.quants.dequantize(gguf.quants.quantize(GAUSS, theirs), theirs))
    assert ours.mean() < 0.97 * other.mean()


def test_numbers_on_the_grid_come_back_exactly() -> None:
    codes = np.random.default_rng(1).integers(0, 16, (3, 64)).astype(np.float32)
    codes[:, ::32], codes[:, 1::32] = 0, 15
    symmetric, shifted = (codes - 8) * np.float32(0.25), codes * np.float32(0.25) + 3
    np.testing.assert_array_equal(dequantise(int4.quantise("w", symmetric)), symmetric)
    np.testing.assert_array_equal(dequantise(int4.quantise_zero_point("w", shifted)), shifted)


def test_constant_groups() -> None:
    values = np.repeat(np.array([[0.0, 3.0]], np.float32), 32, axis=1)
    np.testing.assert_array_equal(dequantise(int4.quantise("w", values)), values)
    np.testing.assert_array_equal(dequantise(int4.quantise_zero_point("w", values)), values)


def test_adding_a_zero_point_changes_no_number() -> None:
    weight = int4.quantise("w", GAUSS)
    np.testing.assert_array_equal(dequantise(int4.add_zero_point(weight)), dequantise(weight))


def test_nibbles_pack_and_unpack() -> None:
    values = np.random.default_rng(2).integers(0, 16, (3, 64), np.uint8)
    packed = pack_nibbles(values)
    assert packed.shape == (3, 32)
    assert packed[0, 1] == values[0, 1] | values[0, 17] << 4
    assert packed[0, 17] == values[0, 33] | values[0, 49] << 4
    np.testing.assert_array_equal(unpack_nibbles(packed), values)
