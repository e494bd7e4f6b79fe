"""int4 in groups and FP8 in blocks: closer than plain rounding, exact on the grid, nothing lost at the edges."""

import ml_dtypes
import numpy as np
import pytest

from trimaran.base.errors import ConfigError
from trimaran.compress.recipe import Fp8Blocks, Int4, Piece
from trimaran.quant.words import unpack

GAUSS = np.random.default_rng(0).standard_normal((96, 256)).astype(np.float32)


def values_of(piece: Piece, group: int) -> np.ndarray:
    """What words and scales stand for, before the product is rounded to bf16."""
    words, scale = piece.arrays
    codes = unpack(words, 4, scale.shape[1] * group).astype(np.float32) - 8
    return codes * scale.astype(np.float32).repeat(group, axis=1)


@pytest.mark.parametrize(("group", "most"), [(32, 0.88), (64, 0.9), (128, 0.9)])
def test_the_fit_is_closer_than_rounding_to_nearest(group: int, most: float) -> None:
    piece = Int4(group).encode(GAUSS)
    error = np.square(values_of(piece, group).astype(np.float64) - GAUSS).sum()
    assert piece.error == pytest.approx(error, rel=1e-4)
    steps = (np.abs(GAUSS.reshape(96, -1, group)).max(-1) / 7.5).astype(ml_dtypes.bfloat16).astype(np.float32)
    wide = steps.repeat(group, axis=1)
    plain = np.square(np.clip(np.rint(GAUSS / wide), -8, 7) * wide - GAUSS).sum()
    assert piece.plain_error == pytest.approx(plain, rel=1e-4)
    assert error < most**2 * plain


def test_numbers_on_the_grid_come_back_and_zeros_stay_zeros() -> None:
    codes = np.random.default_rng(1).integers(-8, 8, (3, 96)).astype(np.float32)
    codes[:, ::32] = -8
    values = codes * np.float32(-0.25)
    values[1] = 0
    np.testing.assert_array_equal(values_of(Int4(32).encode(values), 32), values)


def test_fp8_blocks_reach_448_and_keep_partial_blocks() -> None:
    values = np.random.default_rng(2).standard_normal((130, 200)).astype(np.float32)
    values[:128, :128] = 0
    floats, scale = Fp8Blocks().encode(values).arrays
    assert (floats.shape, scale.shape) == ((130, 200), (2, 2))
    assert scale[0, 0] == 0
    assert np.abs(floats[128:, 128:].astype(np.float32)).max() == 448
    product = floats.astype(np.float32) * scale.repeat(128, 0)[:130].repeat(128, 1)[:, :200]
    assert np.all(np.abs(product - values) <= np.abs(values) / 16 + scale.max() / 512)
    below, _ = Fp8Blocks().encode(values[128:]).arrays  # pieces change nothing
    np.testing.assert_array_equal(below, floats[128:])


def test_groups_of_other_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="groups of 48 weights: choose one of 32, 64, 128"):
        Int4(48)
