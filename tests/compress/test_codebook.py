"""Codebooks as a recipe: what outliers and calibration change, and how many bytes a weight takes."""

from math import prod

import numpy as np
import pytest
from tests.quant.stored_files import stored

from trimaran.base.errors import ConfigError
from trimaran.compress.codebook import Codebook
from trimaran.compress.recipe import Int4, Piece
from trimaran.quant.compensated import factor

RNG = np.random.default_rng(0)
VALUES = RNG.standard_t(5, (64, 512)).astype(np.float32)


def values_of(recipe: Codebook, piece: Piece) -> np.ndarray:
    """What a reader makes of the piece."""
    leaves = [output.name.rpartition(".")[2] for output in recipe.outputs("m", *VALUES.shape)]
    return stored(dict(zip(leaves, piece.arrays, strict=True))).values(slice(None))


def test_outliers_lower_the_error() -> None:
    errors = [Codebook(4, percent).encode(VALUES).error for percent in (0, 0.45, 1)]
    assert errors[1] < 0.8 * errors[0]
    assert errors[2] < 0.9 * errors[1]


def test_inputs_with_large_squares_come_first() -> None:
    squares = np.exp(RNG.normal(0, 2, 512)).astype(np.float32)
    order = Codebook(4).order(np.diag(squares))
    assert (np.diff(squares[order]) <= 0).all()
    alone, together = Codebook(4).encode(VALUES), Codebook(4).encode_together(VALUES, factor(np.diag(squares), order))
    weighed = [(np.square(piece.values - VALUES) * squares).sum() for piece in (alone, together)]
    assert weighed[1] < 0.7 * weighed[0]
    np.testing.assert_array_equal(together.values, values_of(Codebook(4), together))


def test_the_error_that_is_reported() -> None:
    recipe = Codebook(3, 0.6)
    piece = recipe.encode(VALUES)
    assert piece.error == pytest.approx(np.square(values_of(recipe, piece) - VALUES).sum(dtype=np.float64))
    assert piece.error == piece.plain_error
    np.testing.assert_array_equal(piece.values, values_of(recipe, piece))


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    whole = Codebook(4, 1).encode(VALUES)
    for row in (0, 17):
        alone = Codebook(4, 1).encode(VALUES[row : row + 1])
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
