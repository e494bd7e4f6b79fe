"""Taking and stacking rows moves scales and minima with their values."""

from dataclasses import replace

import numpy as np
import pytest

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.weights import Outliers, Weight
from trimaran.quant.convert import quantise
from trimaran.quant.rows import stack_rows, take_rows, transpose_heads

SPARSE = Outliers(
    np.array([0, 2, 2, 3, 3, 3, 6], np.int32),
    np.array([1, 63, 0, 5, 6, 40], np.int32),
    np.array([1, -2, 3, -4, 5, 0.5], np.float16),
)
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


def with_outliers() -> Weight:
    return replace(quantise("w", VALUES, WeightFormat.CODEBOOK4), outliers=SPARSE)


def test_outliers_are_added_to_what_levels_give() -> None:
    added = dequantise(with_outliers()) - dequantise(replace(with_outliers(), outliers=None))
    expected = np.zeros((6, 64), np.float32)
    expected[[0, 0, 2, 5, 5, 5], SPARSE.columns] = SPARSE.values
    np.testing.assert_allclose(added, expected, atol=1e-6)


def test_outliers_go_where_their_rows_go() -> None:
    whole = dequantise(with_outliers())
    np.testing.assert_array_equal(dequantise(take_rows(with_outliers(), np.array([5, 1, 0]))), whole[[5, 1, 0]])
    parts = [take_rows(with_outliers(), slice(at, at + 2)) for at in (0, 2, 4)]
    np.testing.assert_array_equal(dequantise(stack_rows("w", parts)), whole)
    parts[1] = replace(parts[1], outliers=None)
    mixed = dequantise(stack_rows("w", parts))
    np.testing.assert_array_equal(mixed[[0, 1, 4, 5]], whole[[0, 1, 4, 5]])


@pytest.mark.parametrize("fmt", [WeightFormat.FP32, WeightFormat.BF16])
def test_the_matrices_of_heads_are_turned_one_by_one(fmt: WeightFormat) -> None:
    weight = quantise("w", VALUES, fmt)
    turned = transpose_heads(weight, 2)
    assert turned.shape == (128, 3)
    expected = dequantise(weight).reshape(2, 3, 64).swapaxes(1, 2).reshape(128, 3)
    np.testing.assert_array_equal(dequantise(turned), expected)
