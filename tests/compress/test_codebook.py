"""Codebooks as a recipe: what calibration and outliers change, and how many bytes a weight takes."""

from math import prod

import numpy as np
import pytest
from tests.quant.stored_files import stored

from trimaran.base.errors import ConfigError
from trimaran.compress.codebook import Codebook
from trimaran.compress.recipe import Int4, Piece

RNG = np.random.default_rng(0)
VALUES = RNG.standard_t(5, (64, 512)).astype(np.float32)
SQUARES = np.exp(RNG.normal(0, 2, 512)).astype(np.float32)


def values_of(recipe: Codebook, piece: Piece) -> np.ndarray:
    """What a reader makes of the piece."""
    leaves = [output.name.rpartition(".")[2] for output in recipe.outputs("m", *VALUES.shape)]
    return stored(dict(zip(leaves, piece.arrays, strict=True))).values(slice(None))


def weighted_error(recipe: Codebook, squares: np.ndarray | None) -> float:
    """What the rounding does to outputs whose inputs are independent and have ``SQUARES``."""
    return float((np.square(values_of(recipe, recipe.encode(VALUES, squares)) - VALUES) * SQUARES).sum())


def test_calibration_lowers_what_it_weighs_and_outliers_do_too() -> None:
    plain, calibrated = (weighted_error(Codebook(4, 0), squares) for squares in (None, SQUARES))
    apart, both = (weighted_error(Codebook(4, 1), squares) for squares in (None, SQUARES))
    assert calibrated < 0.7 * plain
    assert apart < 0.7 * plain
    assert both < 0.7 * apart


def test_the_error_that_is_reported() -> None:
    recipe = Codebook(3, 0.6)
    piece = recipe.encode(VALUES, None)
    assert piece.error == pytest.approx(np.square(values_of(recipe, piece) - VALUES).sum(dtype=np.float64))
    assert piece.error == piece.plain_error


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    whole = Codebook(4, 1).encode(VALUES, SQUARES)
    for row in (0, 17):
        alone = Codebook(4, 1).encode(VALUES[row : row + 1], SQUARES)
        for one, all_ in zip(alone.arrays, whole.arrays, strict=True):
            np.testing.assert_array_equal(one[0], all_[row])


def bits(recipe: Codebook | Int4, rows: int, cols: int) -> float:
    """Of a weight, with all that is stored for the matrix."""
    return sum(8 * prod(one.shape) * one.fmt.block_bytes for one in recipe.outputs("m", rows, cols)) / (rows * cols)


def test_bits_of_a_weight() -> None:
    assert bits(Codebook(4, 0), 4096, 4096) == 4 + (16 * 8 + 16) / 4096
    assert bits(Codebook(3, 0.45), 4096, 4096) == 3 + (8 * 8 + 16 + 18 * 32) / 4096
    assert bits(Codebook(4), 2048, 640) < bits(Int4(32), 2048, 640)


@pytest.mark.parametrize("percent", [-0.1, 10.5, float("nan")])
def test_other_shares_are_refused(percent: float) -> None:
    with pytest.raises(ConfigError, match="as outliers: choose 0 to 10"):
        Codebook(4, percent)
