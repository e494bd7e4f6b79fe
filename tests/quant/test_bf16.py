"""bf16 weights round to nearest even."""

import numpy as np

from trimaran.kernels.dequantise import dequantise
from trimaran.quant import bf16


def test_rounding_to_nearest_even() -> None:
    bits = np.array([[0x3F800000, 0x3F807FFF, 0x3F808000, 0x3F808001, 0x3F818000, 0xBF818000]], np.uint32)
    weight = bf16.quantise("w", bits.view(np.float32))
    assert weight.data.dtype == np.uint16
    assert [hex(int(x)) for x in weight.data[0]] == ["0x3f80", "0x3f80", "0x3f80", "0x3f81", "0x3f82", "0xbf82"]
    assert dequantise(weight)[0, 4] == np.float32(1.015625)
