"""GGUF's block formats to float32.

Source: ``block_*`` structs in ggml ``ggml-common.h`` and ``dequantize_row_*`` in ``ggml-quants.c``. A block is 32
values (K-quants: 256) of one row, its scales beside them, all little-endian.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat
from trimaran.kernels.step import Float32

Bytes = npt.NDArray[np.uint8]  # [rows, blocks, bytes of a block] or a part of it
Integers = npt.NDArray[np.int8]
Half = npt.NDArray[np.float16]


def dequantise(tensor: CheckpointTensor) -> Float32:
    """The tensor as float32 of ``tensor.shape``, computed as ggml does."""
    values = _DEQUANTISE[tensor.fmt](blocks(tensor))
    return values.reshape(tensor.shape)


def blocks(tensor: CheckpointTensor) -> Bytes:
    """``[rows, blocks, bytes of a block]``."""
    return tensor.data.reshape(tensor.data.shape[0], -1, tensor.fmt.block_bytes)


def half(part: Bytes) -> Half:
    """Two bytes of each block as fp16, ``[rows, blocks]``."""
    return np.ascontiguousarray(part).view("<f2")[..., 0]


def _wide(part: Bytes) -> Float32:
    """Two bytes of each block as fp16 widened to float32, ``[rows, blocks, 1]``."""
    return half(part).astype(np.float32)[..., None]


def _nibbles(part: Bytes) -> Bytes:
    """16 bytes to 32 values: the low nibbles, then the high ones."""
    return np.concatenate([part & 15, part >> 4], axis=-1)


def _fifth_bits(part: Bytes) -> Bytes:
    """32 bits, the lowest first, as 0 or 16."""
    return np.unpackbits(part, axis=-1, bitorder="little") * np.uint8(16)


def _plain(dtype: str) -> Callable[[Bytes], Float32]:
    return lambda b: np.ascontiguousarray(b).view(dtype).astype(np.float32)


def _bf16(b: Bytes) -> Float32:
    return (np.ascontiguousarray(b).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(b: Bytes) -> Float32:
    return _wide(b[..., :2]) * b[..., 2:].view(np.int8)


def _q4_0(b: Bytes) -> Float32:
    return _wide(b[..., :2]) * (_nibbles(b[..., 2:]).view(np.int8) - 8)


def _q4_1(b: Bytes) -> Float32:
    return _wide(b[..., :2]) * _nibbles(b[..., 4:]) + _wide(b[..., 2:4])


def q5_0_codes(b: Bytes) -> Integers:
    """-16 to 15."""
    return (_nibbles(b[..., 6:]) | _fifth_bits(b[..., 2:6])).view(np.int8) - 16


def _q5_0(b: Bytes) -> Float32:
    return _wide(b[..., :2]) * q5_0_codes(b)


def _q5_1(b: Bytes) -> Float32:
    return _wide(b[..., :2]) * (_nibbles(b[..., 8:]) | _fifth_bits(b[..., 4:8])) + _wide(b[..., 2:4])


def k_scales(b: Bytes) -> tuple[Float32, Float32]:
    """Scale and minimum ``[rows, blocks, 8, 1]`` of the 8 sub-blocks of Q4_K and Q5_K.

    Twelve bytes hold 8 + 8 numbers of 6 bits: bytes 0-3 and 4-7 the first four scales and minima; their top two bits
    are the top bits of the last four, whose low nibbles are in bytes 8-11.
    """
    first, second, third = b[..., 4:8], b[..., 8:12], b[..., 12:16]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    return (_wide(b[..., :2]) * scales)[..., None], (_wide(b[..., 2:4]) * minima)[..., None]


def k_nibbles(part: Bytes) -> Bytes:
    """128 bytes to ``[8, 32]``: each 32 bytes hold two sub-blocks, in their low and in their high nibbles."""
    chunks = part.reshape(*part.shape[:-1], 4, 1, 32)
    return np.concatenate([chunks & 15, chunks >> 4], axis=-2).reshape(*part.shape[:-1], 8, 32)


def _q4_k(b: Bytes) -> Float32:
    scales, minima = k_scales(b)
    return scales * k_nibbles(b[..., 16:]) - minima


def _q5_k(b: Bytes) -> Float32:
    scales, minima = k_scales(b)
    bits = b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # bit i of byte j: value j of sub-block i
    return scales * (k_nibbles(b[..., 48:]) | bits << 4) - minima


def _q2_k(b: Bytes) -> Float32:
    """16 sub-blocks of 16 with 4-bit scales and minima; 2-bit codes in runs of 32 as in ``_q6_k``."""
    scales = _wide(b[..., 80:82]) * (b[..., :16] & 15)
    minima = _wide(b[..., 82:84]) * (b[..., :16] >> 4)
    codes = _bit_pairs(b[..., 16:80]).reshape(*b.shape[:-1], 16, 16).astype(np.float32)
    return scales[..., None] * codes - minima[..., None]


def _q3_k(b: Bytes) -> Float32:
    """16 sub-blocks of 16; their 6-bit scales have the low nibbles in 8 bytes, the high pairs in 4; a third bit of each
    code, which takes 4 away where it is not set, in 32 bytes."""
    low = b[..., None, 96:104] >> np.array([[0], [4]], np.uint8) & 15
    high = b[..., None, 104:108] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales = (low.reshape(*b.shape[:-1], 16) | high.reshape(*b.shape[:-1], 16) << 4).view(np.int8) - 32
    missing = ~b[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _bit_pairs(b[..., 32:96]).reshape(*b.shape[:-1], 8, 32).view(np.int8) - (missing << 2).view(np.int8)
    return (_wide(b[..., 108:]) * scales)[..., None] * codes.reshape(*b.shape[:-1], 16, 16)


def _bit_pairs(part: Bytes) -> Bytes:
    """64 bytes to ``[2, 4, 32]`` values 0 to 3: 32 bytes hold four runs of 32, the first in their lowest bits."""
    pairs: Bytes = part.reshape(*part.shape[:-1], 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    return pairs


def iq4_codes(part: Bytes) -> Integers:
    """Nibbles of 16 bytes to the 32 values that they number, as ``block_iq4_nl`` has them."""
    return _IQ4[_nibbles(part)]


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def _iq4_nl(b: Bytes) -> Float32:
    return _wide(b[..., :2]) * iq4_codes(b[..., 2:])


def iq4_xs_scales(b: Bytes) -> Float32:
    """Scales ``[rows, blocks, 8]`` of sub-blocks of 32: 6 bits each, low nibbles in 4 bytes, high pairs in 2."""
    low = (b[..., 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(*b.shape[:-1], 8)
    high = np.ascontiguousarray(b[..., 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    return _wide(b[..., :2]) * ((low | high.astype(np.uint8) << 4).view(np.int8) - 32)


def iq4_xs_codes(b: Bytes) -> Integers:
    """``[rows, blocks, 8, 32]``."""
    return iq4_codes(b[..., 8:].reshape(*b.shape[:-1], 8, 16))


def _iq4_xs(b: Bytes) -> Float32:
    return iq4_xs_scales(b)[..., None] * iq4_xs_codes(b)


def mxfp4_codes(b: Bytes) -> Integers:
    """Twice the numbers of 4-bit floats (e2m1)."""
    return _E2M1[_nibbles(b[..., 1:])]


_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def mxfp4_scales(b: Bytes) -> Float32:
    """Half of each block's scale, a power of two."""
    return np.ldexp(np.float32(1), b[..., 0].astype(np.int32) - 128)


def _mxfp4(b: Bytes) -> Float32:
    return mxfp4_scales(b)[..., None] * mxfp4_codes(b)


def _q6_k(b: Bytes) -> Float32:
    """Two halves of 128 values, each four runs of 32: run r has its high bits in bits 2r and 2r + 1 of 32 bytes."""
    low = b[..., :128].reshape(*b.shape[:-1], 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-2).reshape(*b.shape[:-1], 2, 4, 32)
    codes = (low | _bit_pairs(b[..., 128:192]) << 4).view(np.int8) - 32
    scales = _wide(b[..., 208:]) * np.ascontiguousarray(b[..., 192:208]).view(np.int8)
    return scales[..., None] * codes.reshape(*b.shape[:-1], 16, 16)


_DEQUANTISE: dict[StorageFormat, Callable[[Bytes], Float32]] = {
    StorageFormat.F32: _plain("<f4"),
    StorageFormat.F16: _plain("<f2"),
    StorageFormat.BF16: _bf16,
    StorageFormat.Q8_0: _q8_0,
    StorageFormat.Q4_0: _q4_0,
    StorageFormat.Q4_1: _q4_1,
    StorageFormat.Q5_0: _q5_0,
    StorageFormat.Q5_1: _q5_1,
    StorageFormat.Q2_K: _q2_k,
    StorageFormat.Q3_K: _q3_k,
    StorageFormat.Q4_K: _q4_k,
    StorageFormat.Q5_K: _q5_k,
    StorageFormat.Q6_K: _q6_k,
    StorageFormat.IQ4_NL: _iq4_nl,
    StorageFormat.IQ4_XS: _iq4_xs,
    StorageFormat.MXFP4: _mxfp4,
}
READABLE = frozenset(_DEQUANTISE)
