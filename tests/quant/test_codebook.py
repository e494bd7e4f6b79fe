"""Levels of their own for each row."""

import numpy as np
import pytest

from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise, unpack_nibbles
from trimaran.quant import int4
from trimaran.quant.codebook import fit_levels, nearest_levels, quantise

CODEBOOKS = (WeightFormat.CODEBOOK4, WeightFormat.CODEBOOK3)


def error(weight, values: np.ndarray) -> float:
    return float(np.linalg.norm(dequantise(weight) - values) / np.linalg.norm(values))


@pytest.mark.parametrize("fmt", CODEBOOKS)
def test_numbers_that_lie_on_levels_stay(fmt: WeightFormat) -> None:
    rng = np.random.default_rng(1)
    levels = np.sort(rng.choice(np.arange(-126, 127), fmt.levels, replace=False)).astype(np.float32)
    levels[-1] = 127
    values = rng.choice(levels, (3, 256)).astype(np.float32) * np.float32(0.25)
    values[:, 0] = 127 * 0.25
    assert error(quantise("w", values, fmt), values) == 0


@pytest.mark.parametrize(("fmt", "most"), [(WeightFormat.CODEBOOK4, 0.0975), (WeightFormat.CODEBOOK3, 0.186)])
def test_what_rounding_costs(fmt: WeightFormat, most: float) -> None:
    """Near the bound for normally distributed numbers (Max, 1960): 0.0975 with 16 levels, 0.186 with 8."""
    values = np.random.default_rng(2).standard_normal((32, 2048)).astype(np.float32)
    weight = quantise("w", values, fmt)
    assert unpack_nibbles(weight.data.view(np.uint8)).max() < fmt.levels
    assert error(weight, values) < most


def test_one_codebook_a_row_comes_near_a_scale_for_every_32() -> None:
    values = np.random.default_rng(3).standard_normal((32, 2048)).astype(np.float32)
    assert error(quantise("w", values, WeightFormat.CODEBOOK4), values) < 1.25 * error(
        int4.quantise("w", values), values
    )


def test_what_matters_more_is_rounded_less() -> None:
    values = np.random.default_rng(4).standard_normal((8, 512)).astype(np.float32)
    importance = np.where(values > 0, np.float32(100), np.float32(1))
    weighted = dequantise(quantise("w", values, WeightFormat.CODEBOOK4, importance))
    plain = dequantise(quantise("w", values, WeightFormat.CODEBOOK4))
    above = values > 0
    assert np.square(weighted - values)[above].sum() < 0.7 * np.square(plain - values)[above].sum()


def test_rows_of_zeros_and_of_few_numbers_are_exact() -> None:
    values = np.zeros((2, 64), np.float32)
    values[1, ::2] = -3.5
    assert error(quantise("w", values, WeightFormat.CODEBOOK3), values) < 1e-3


def least_error(weights: np.ndarray, count: int) -> np.ndarray:
    """The least squared error that ``count`` levels leave of each row of ``weights``, by trying all."""
    places = np.arange(weights.shape[1], dtype=np.float64)
    sums = [np.cumsum(np.pad(weights * places**power, ((0, 0), (1, 0))), axis=1) for power in range(3)]
    mass, moment, square = (each[:, None, :] - each[:, :, None] for each in sums)
    cost = square - np.divide(moment**2, mass, out=np.zeros_like(mass), where=mass > 0)
    cost[:, np.tril(np.ones(cost.shape[1:], bool), -1)] = np.inf
    best = cost[:, 0]
    for _ in range(count - 1):
        best = (best[:, :, None] + cost).min(axis=1)
    return best[:, -1]


@pytest.mark.parametrize("count", [16, 8])
@pytest.mark.parametrize("freedom", [3, 50])
def test_levels_are_nearly_the_best_there_are(count: int, freedom: int) -> None:
    """Student's t and importances that vary by hundreds: as rows of language models, or worse."""
    rng = np.random.default_rng(freedom)
    values = rng.standard_t(freedom, (24, 1024))
    values *= 127 / np.abs(values).max(axis=1, keepdims=True)
    importance = np.exp(rng.normal(0, 2, 1024))
    weights = np.stack([np.bincount(np.rint(row + 127).astype(int), importance, 255) for row in values])
    levels = fit_levels(weights, count).astype(np.float64)
    distance = np.abs(np.arange(-127, 128)[:, None] - levels[:, None, :]).min(axis=-1)
    rounding = weights.sum() / 12  # of levels to integers
    error = (weights * distance**2).sum()
    least = least_error(weights, count).sum()
    assert error < 1.03 * least + rounding


def test_every_integer_gets_its_nearest_level() -> None:
    levels = fit_levels(np.random.default_rng(5).random((4, 255)), 8)
    distances = np.abs(np.arange(-127, 128)[None, :, None] - levels.astype(int)[:, None, :])
    codes = nearest_levels(levels).astype(np.intp)
    chosen = np.take_along_axis(distances, codes[..., None], axis=2)[..., 0]
    np.testing.assert_array_equal(chosen, distances.min(axis=2))


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="w holds numbers too large"):
        quantise("w", np.full((1, 32), np.inf, np.float32), WeightFormat.CODEBOOK4)
