"""Grids of GGUF's formats that executors hold: what keeps every bit, and how little the others lose."""

import numpy as np
import pytest

from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat
from trimaran.kernels.dequantise import dequantise as dequantise_weight
from trimaran.quant import int8
from trimaran.quant.gguf_blocks import dequantise
from trimaran.quant.gguf_grids import on_grid, own_grid

from .tensors import from_bytes, random_blocks


@pytest.mark.parametrize(
    ("fmt", "grid"),
    [
        (StorageFormat.Q8_0, WeightFormat.INT8),
        (StorageFormat.Q5_0, WeightFormat.INT8),
        (StorageFormat.Q4_0, WeightFormat.INT4),
        (StorageFormat.Q4_1, WeightFormat.INT4Z),
        (StorageFormat.IQ4_NL, WeightFormat.INT8),
        (StorageFormat.MXFP4, WeightFormat.INT8),
    ],
)
def test_own_grids_keep_every_bit(fmt: StorageFormat, grid: WeightFormat) -> None:
    tensor = random_blocks(fmt, rows=5, cols=96)
    assert own_grid(tensor) is grid
    weight = on_grid(tensor)
    assert (weight.name, weight.fmt, weight.shape) == ("w", grid, (5, 96))
    assert weight.data.flags.c_contiguous
    np.testing.assert_array_equal(dequantise_weight(weight), dequantise(tensor))


@pytest.mark.parametrize(
    ("fmt", "grid"), [(StorageFormat.Q4_K, WeightFormat.INT4Z), (StorageFormat.IQ4_XS, WeightFormat.INT8)]
)
def test_codes_kept_beside_rounded_scales_are_nearer_than_a_new_grid(fmt: StorageFormat, grid: WeightFormat) -> None:
    tensor = random_blocks(fmt, rows=64, cols=512)
    assert own_grid(tensor) is grid
    exact = dequantise(tensor)
    kept, anew = (dequantise_weight(weight) - exact for weight in (on_grid(tensor), int8.quantise("w", exact)))
    assert np.linalg.norm(kept) < 3e-4 * np.linalg.norm(exact)
    assert np.linalg.norm(kept) < 0.25 * np.linalg.norm(anew)


def test_mxfp4_beyond_half_precision_has_no_grid() -> None:
    for exponent, held in ((103, False), (104, True), (143, True), (144, False)):
        tensor = from_bytes(StorageFormat.MXFP4, 1, 32, bytes([exponent, *[0x21] * 16]))
        assert own_grid(tensor) is (WeightFormat.INT8 if held else None)


def test_scales_that_are_no_numbers_are_refused() -> None:
    tensor = from_bytes(StorageFormat.Q8_0, 1, 32, np.float16(np.nan).tobytes() + bytes(32))
    with pytest.raises(UnsupportedError, match="w holds numbers too large for fp16 scales, or not finite"):
        on_grid(tensor)


@pytest.mark.parametrize(
    ("fmt", "grid"), [(StorageFormat.F32, WeightFormat.FP32), (StorageFormat.BF16, WeightFormat.BF16)]
)
def test_plain_formats_are_views_where_the_file_aligns_them(fmt: StorageFormat, grid: WeightFormat) -> None:
    data = np.arange(32, dtype=np.uint8).view(np.uint8)
    aligned = CheckpointTensor("w", (2, 16 // fmt.block_bytes), fmt, data.reshape(2, 16))
    weight = on_grid(aligned)
    assert weight.fmt is grid
    assert np.shares_memory(weight.data, data)
    shifted = on_grid(from_bytes(fmt, 2, 16 // fmt.block_bytes, data.tobytes()))
    assert shifted.data.flags.aligned
    np.testing.assert_array_equal(shifted.data, weight.data)


@pytest.mark.parametrize("fmt", [StorageFormat.F16, StorageFormat.Q5_1, StorageFormat.Q5_K, StorageFormat.Q6_K])
def test_other_formats_have_no_grid_of_ours(fmt: StorageFormat) -> None:
    data = bytes(2 * fmt.row_bytes(256))
    assert own_grid(from_bytes(fmt, 2, 256, data)) is None
