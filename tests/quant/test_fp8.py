"""fp8 as an executor's format: a checkpoint's own codes, or made of plain numbers."""

import ml_dtypes
import numpy as np
import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.quant import rows
from trimaran.quant.convert import to_weight
from trimaran.quant.fp8 import Fp8, quantise

RNG = np.random.default_rng(0)


def stored(shape: tuple[int, int], block: tuple[int, int], dtype: type = ml_dtypes.float8_e4m3fn) -> Fp8:
    floats = RNG.standard_normal(shape).astype(dtype)
    scale = RNG.uniform(0.01, 1, (-(-shape[0] // block[0]), -(-shape[1] // block[1]))).astype(np.float32)
    return Fp8("w", shape, floats, scale, block)


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((300, 320), (128, 128)),
        ((8, 512), (1, 128)),
        ((8, 512), (1, 256)),
        ((16, 96), (1, 96)),  # a scale a row
        ((200, 320), (200, 320)),  # one scale
        ((200, 320), (64, 320)),
    ],
)
def test_codes_of_a_checkpoint_are_kept(
    shape: tuple[int, int], block: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = stored(shape, block)
    weight = to_weight(tensor, WeightFormat.FP8)
    np.testing.assert_array_equal(weight.data, tensor.floats.view(np.uint8))
    np.testing.assert_array_equal(dequantise(weight), tensor.values(slice(None)))
    monkeypatch.setattr(rows, "_PIECE", 3 * shape[1])
    np.testing.assert_array_equal(dequantise(to_weight(tensor, WeightFormat.FP8)), dequantise(weight))


@pytest.mark.parametrize("tensor", [stored((4, 96), (1, 32)), stored((4, 256), (2, 256), ml_dtypes.float8_e5m2)])
def test_what_no_block_of_128_holds_is_rounded_again(tensor: Fp8) -> None:
    assert tensor.grid() is None
    exact = tensor.values(slice(None))
    assert np.linalg.norm(dequantise(to_weight(tensor, WeightFormat.FP8)) - exact) < 0.04 * np.linalg.norm(exact)


def test_codes_that_are_no_numbers_are_named() -> None:
    tensor = stored((4, 128), (4, 128))
    tensor.floats[2, 5] = np.nan
    with pytest.raises(CheckpointError, match="tensor w holds values that are no numbers"):
        to_weight(tensor, WeightFormat.FP8)


def test_plain_numbers_become_blocks_of_128() -> None:
    values = RNG.standard_normal((200, 300)).astype(np.float32)
    values[130:, :128] *= 1000
    weight = quantise("w", values)
    assert weight.scale is not None
    assert weight.scale.shape == (200, 3)
    np.testing.assert_array_equal(weight.scale[:128], np.broadcast_to(weight.scale[0], (128, 3)))
    assert np.abs(values[:128, :128]).max() == np.float32(448) * weight.scale[0, 0]
    assert 0.02 < np.linalg.norm(dequantise(weight) - values) / np.linalg.norm(values) < 0.03


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="w holds numbers too large for fp8"):
        quantise("w", np.full((1, 32), np.nan, np.float32))
