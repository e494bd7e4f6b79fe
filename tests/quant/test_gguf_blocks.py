"""GGUF's block formats: by hand, and against the ``gguf`` package on random bits."""

import gguf
import numpy as np
import pytest

from trimaran.checkpoint.tensors import StorageFormat
from trimaran.quant.gguf_blocks import dequantise

from .tensors import BLOCK_FORMATS, from_bytes, random_blocks


def half(value: float) -> bytes:
    return np.float16(value).tobytes()


@pytest.mark.parametrize("fmt", BLOCK_FORMATS)
def test_every_block_format_as_the_gguf_package_reads_it(fmt: StorageFormat) -> None:
    tensor = random_blocks(fmt, rows=3, cols=768)
    expected = gguf.quants.dequantize(tensor.data, gguf.GGMLQuantizationType[fmt.name])
    values = dequantise(tensor)
    assert values.shape == (3, 768)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("fmt", [StorageFormat.F32, StorageFormat.F16, StorageFormat.BF16])
def test_plain_formats_as_the_gguf_package_reads_them(fmt: StorageFormat) -> None:
    kind = gguf.GGMLQuantizationType[fmt.name]
    data = gguf.quants.quantize(np.random.default_rng(0).standard_normal((3, 40), np.float32), kind)
    tensor = from_bytes(fmt, 3, 40, data.tobytes())
    np.testing.assert_array_equal(dequantise(tensor), gguf.quants.dequantize(data, kind).astype(np.float32))


def test_q4_1_by_hand() -> None:
    nibbles = bytes([0x0F, *[0x21] * 14, 0xF0])  # values 0 to 15 in the low halves, 16 to 31 in the high ones
    values = dequantise(from_bytes(StorageFormat.Q4_1, 1, 32, half(0.5) + half(-1.0) + nibbles))
    assert values[0].tolist() == [6.5, *[-0.5] * 14, -1.0, -1.0, *[0.0] * 14, 6.5]


def test_q4_0_by_hand() -> None:
    values = dequantise(from_bytes(StorageFormat.Q4_0, 1, 32, half(2.0) + bytes([0x0F] + [0x98] * 15)))
    assert values[0].tolist() == [14.0, *[0.0] * 15, -16.0, *[2.0] * 15]


def test_q8_0_by_hand() -> None:
    data = half(0.25) + bytes([127, 128, 255, *[0] * 29])
    assert dequantise(from_bytes(StorageFormat.Q8_0, 1, 32, data))[0, :4].tolist() == [31.75, -32.0, -0.25, 0.0]


def test_q5_1_by_hand() -> None:
    high = (1 << 0 | 1 << 31).to_bytes(4, "little")
    data = half(1.0) + half(100.0) + high + bytes([0x01] + [0x00] * 14 + [0x20])
    values = dequantise(from_bytes(StorageFormat.Q5_1, 1, 32, data))[0]
    assert (values[0], values[1], values[31]) == (117.0, 100.0, 118.0)


def test_q4_k_by_hand() -> None:
    """Scale and minimum of sub-blocks 0 and 5, the second put together from two bytes each."""
    scales = bytearray(12)
    scales[0], scales[4] = 3, 2  # sub-block 0: scale 3, minimum 2
    scales[1] |= 0b10 << 6  # sub-block 5: scale 0b10_0111, minimum 0b01_0001
    scales[5] |= 0b01 << 6
    scales[9] = 0x17
    data = half(1.0) + half(0.5) + bytes(scales) + bytes([0x05] * 32 + [0] * 32 + [0x90] * 32 + [0] * 32)
    values = dequantise(from_bytes(StorageFormat.Q4_K, 1, 256, data))[0].reshape(8, 32)
    assert set(values[0]) == {3 * 5 - 0.5 * 2}
    assert set(values[5]) == {0b100111 * 9 - 0.5 * 0b010001}
    assert set(values[1]) == {0.0}


def test_q6_k_by_hand() -> None:
    low, high, scales = bytearray(128), bytearray([0b10101010] * 64), bytearray([1] * 16)
    low[64 + 32] = 0x70  # value 96 of the second half: code 7 | 3 << 4 = 55
    high[32] = 0b11101010
    scales[8 + 6] = 2
    data = bytes(low) + bytes(high) + bytes(scales) + half(0.5)
    values = dequantise(from_bytes(StorageFormat.Q6_K, 1, 256, data))[0]
    assert values[128 + 96] == 0.5 * 2 * (55 - 32)
    assert set(np.delete(values, 128 + 96)) == {0.0}  # code 2 << 4 stands for 0
