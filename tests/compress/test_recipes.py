"""int4 in groups and FP8 in blocks: closer than plain rounding, exact on the grid, nothing lost at the edges."""

import numpy as np
import pytest

from trimaran.base.errors import ConfigError
from trimaran.compress.recipe import Fp8Blocks, Int4
from trimaran.quant.words import unpack

GAUSS = np.random.default_rng(0).standard_normal((96, 256)).astype(np.float32)


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values - GAUSS).mean()))


@pytest.mark.parametrize(("group", "most"), [(32, 0.88), (64, 0.9), (128, 0.9)])
def test_the_fit_is_closer_than_rounding_to_nearest(group: int, most: float) -> None:
    piece = Int4(group).encode(GAUSS)
    assert piece.plain is not None
    assert rms(piece.values) < most * rms(piece.plain)


def test_the_values_are_what_words_and_scales_say() -> None:
    piece = Int4(64).encode(GAUSS)
    words, scale = piece.arrays
    codes = unpack(words, 4, 256).astype(np.float32) - 8
    product = codes * scale.astype(np.float32).repeat(64, axis=1)
    np.testing.assert_array_equal(product.astype(scale.dtype).astype(np.float32), piece.values)


def test_numbers_on_the_grid_come_back_and_zeros_stay_zeros() -> None:
    codes = np.random.default_rng(1).integers(-8, 8, (3, 96)).astype(np.float32)
    codes[:, ::32] = -8
    values = codes * np.float32(-0.25)
    values[1] = 0
    np.testing.assert_array_equal(Int4(32).encode(values).values, values)


def test_fp8_blocks_reach_448_and_keep_partial_blocks() -> None:
    values = np.random.default_rng(2).standard_normal((130, 200)).astype(np.float32)
    values[:128, :128] = 0
    piece = Fp8Blocks().encode(values)
    floats, scale = piece.arrays
    assert (floats.shape, scale.shape) == ((130, 200), (2, 2))
    assert scale[0, 0] == 0
    assert np.abs(floats[128:, 128:].astype(np.float32)).max() == 448
    assert np.all(np.abs(piece.values - values) <= np.abs(values) / 16 + scale.max() / 512)
    shape_alone = Fp8Blocks().encode(values[128:])  # pieces change nothing
    np.testing.assert_array_equal(shape_alone.values, piece.values[128:])


def test_groups_of_other_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="groups of 48 weights: choose one of 32, 64, 128"):
        Int4(48)
