"""Taking and stacking rows moves scales and minima with their values."""

import numpy as np
import pytest

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.quant.convert import quantise
from trimaran.quant.rows import stack_rows, take_rows, transpose_heads

VALUES = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)


@pytest.mark.parametrize("fmt", list(WeightFormat))
def test_rows_are_taken_in_the_order_asked_for(fmt: WeightFormat) -> None:
    weight = quantise("w", VALUES, fmt)
    taken = take_rows(weight, np.array([4, 0, 5]))
    assert taken.shape == (3, 64)
    np.testing.assert_array_equal(dequantise(taken), dequantise(weight)[[4, 0, 5]])


@pytest.mark.parametrize("fmt", list(WeightFormat))
def test_stacked_slices_are_the_whole(fmt: WeightFormat) -> None:
    weight = quantise("w", VALUES, fmt)
    whole = stack_rows("new", [take_rows(weight, slice(0, 1)), take_rows(weight, slice(1, 6))])
    assert (whole.name, whole.fmt, whole.shape) == ("new", fmt, (6, 64))
    np.testing.assert_array_equal(dequantise(whole), dequantise(weight))


def test_vectors_are_rows_of_single_values() -> None:
    vector = quantise("b", VALUES[0], WeightFormat.FP32)
    joined = stack_rows("bias", [vector, take_rows(vector, np.array([3, 2]))])
    assert joined.shape == (66,)
    assert dequantise(joined)[-2:].tolist() == [VALUES[0, 3], VALUES[0, 2]]


def test_rows_of_two_formats_do_not_mix() -> None:
    with pytest.raises(AssertionError):
        stack_rows("w", [quantise("a", VALUES, WeightFormat.INT8), quantise("b", VALUES, WeightFormat.INT4)])


@pytest.mark.parametrize("fmt", [WeightFormat.FP32, WeightFormat.BF16])
def test_the_matrices_of_heads_are_turned_one_by_one(fmt: WeightFormat) -> None:
    weight = quantise("w", VALUES, fmt)
    turned = transpose_heads(weight, 2)
    assert turned.shape == (128, 3)
    expected = dequantise(weight).reshape(2, 3, 64).swapaxes(1, 2).reshape(128, 3)
    np.testing.assert_array_equal(dequantise(turned), expected)
