"""GGUF's block formats: every one to float32, and those whose grid an executor holds to that grid, bit for bit.

Source: ``block_*`` structs in ggml ``ggml-common.h`` and ``dequantize_row_*`` in ``ggml-quants.c``. A block is 32
values (K-quants: 256) of one row, its scales beside them, all little-endian.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import WeightFormat
from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight

Bytes = npt.NDArray[np.uint8]  # [rows, blocks, bytes of a block] or a part of it


def dequantise(tensor: CheckpointTensor) -> Float32:
    """The tensor as float32 of ``tensor.shape``, computed as ggml does."""
    values = _DEQUANTISE[tensor.fmt](_blocks(tensor))
    return values.reshape(tensor.shape)


def own_grid(tensor: CheckpointTensor) -> Weight | None:
    """The matrix in the format that holds exactly its numbers in exactly its grid, or ``None`` where there is none."""
    if tensor.fmt not in _ON_GRID:
        return None
    return _ON_GRID[tensor.fmt](tensor)


def _blocks(tensor: CheckpointTensor) -> Bytes:
    return tensor.data.reshape(tensor.data.shape[0], -1, tensor.fmt.block_bytes)


def _half(part: Bytes) -> npt.NDArray[np.float16]:
    """Two bytes of each block as fp16, ``[rows, blocks]``."""
    return np.ascontiguousarray(part).view("<f2")[..., 0]


def _wide(part: Bytes) -> Float32:
    """Two bytes of each block as fp16 widened to float32, ``[rows, blocks, 1]``."""
    return _half(part).astype(np.float32)[..., None]


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


def _q5_0_codes(b: Bytes) -> npt.NDArray[np.int8]:
    return (_nibbles(b[..., 6:]) | _fifth_bits(b[..., 2:6])).view(np.int8) - 16


def _q5_0(b: Bytes) -> Float32:
    return _wide(b[..., :2]) * _q5_0_codes(b)


def _q5_1(b: Bytes) -> Float32:
    return _wide(b[..., :2]) * (_nibbles(b[..., 8:]) | _fifth_bits(b[..., 4:8])) + _wide(b[..., 2:4])


def _k_scales(b: Bytes) -> tuple[Float32, Float32]:
    """Scale and minimum ``[rows, blocks, 8, 1]`` of the 8 sub-blocks of Q4_K and Q5_K.

    Twelve bytes hold 8 + 8 numbers of 6 bits: bytes 0-3 and 4-7 the first four scales and minima; their top two bits
    are the top bits of the last four, whose low nibbles are in bytes 8-11.
    """
    first, second, third = b[..., 4:8], b[..., 8:12], b[..., 12:16]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    return (_wide(b[..., :2]) * scales)[..., None], (_wide(b[..., 2:4]) * minima)[..., None]


def _k_nibbles(part: Bytes) -> Bytes:
    """128 bytes to ``[8, 32]``: each 32 bytes hold two sub-blocks, in their low and in their high nibbles."""
    chunks = part.reshape(*part.shape[:-1], 4, 1, 32)
    return np.concatenate([chunks & 15, chunks >> 4], axis=-2).reshape(*part.shape[:-1], 8, 32)


def _q4_k(b: Bytes) -> Float32:
    scales, minima = _k_scales(b)
    return scales * _k_nibbles(b[..., 16:]) - minima


def _q5_k(b: Bytes) -> Float32:
    scales, minima = _k_scales(b)
    bits = b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # bit i of byte j: value j of sub-block i
    return scales * (_k_nibbles(b[..., 48:]) | bits << 4) - minima


def _q6_k(b: Bytes) -> Float32:
    """Two halves of 128 values, each four runs of 32: run r has its high bits in bits 2r and 2r + 1 of 32 bytes."""
    low = b[..., :128].reshape(*b.shape[:-1], 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-2).reshape(*b.shape[:-1], 2, 4, 32)
    high = b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    codes = (low | high << 4).view(np.int8) - 32
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
    StorageFormat.Q4_K: _q4_k,
    StorageFormat.Q5_K: _q5_k,
    StorageFormat.Q6_K: _q6_k,
}
READABLE = frozenset(_DEQUANTISE)


def _values(tensor: CheckpointTensor, fmt: WeightFormat, dtype: str) -> Weight:
    """A view of the file, unless its values are not aligned there."""
    data = np.require(tensor.data.view(dtype), requirements=["C", "A"])
    return Weight(tensor.name, fmt, tensor.shape, data)


def _packed(part: Bytes, shape: tuple[int, ...]) -> Bytes:
    return np.ascontiguousarray(part).reshape(shape[0], -1)


def _int8(tensor: CheckpointTensor) -> Weight:
    b = _blocks(tensor)
    data = _packed(b[..., 2:], tensor.shape).view(np.int8)
    return Weight(tensor.name, WeightFormat.INT8, tensor.shape, data, _half(b[..., :2]))


def _int8_of_q5_0(tensor: CheckpointTensor) -> Weight:
    b = _blocks(tensor)
    return Weight(tensor.name, WeightFormat.INT8, tensor.shape, _q5_0_codes(b).reshape(tensor.shape), _half(b[..., :2]))


def _int4(tensor: CheckpointTensor) -> Weight:
    b = _blocks(tensor)
    return Weight(tensor.name, WeightFormat.INT4, tensor.shape, _packed(b[..., 2:], tensor.shape), _half(b[..., :2]))


def _int4z(tensor: CheckpointTensor) -> Weight:
    b = _blocks(tensor)
    data = _packed(b[..., 4:], tensor.shape)
    return Weight(tensor.name, WeightFormat.INT4Z, tensor.shape, data, _half(b[..., :2]), _half(b[..., 2:4]))


_ON_GRID: dict[StorageFormat, Callable[[CheckpointTensor], Weight]] = {
    StorageFormat.F32: lambda tensor: _values(tensor, WeightFormat.FP32, "<f4"),
    StorageFormat.BF16: lambda tensor: _values(tensor, WeightFormat.BF16, "<u2"),
    StorageFormat.Q8_0: _int8,
    StorageFormat.Q5_0: _int8_of_q5_0,
    StorageFormat.Q4_0: _int4,
    StorageFormat.Q4_1: _int4z,
}
GRIDS: dict[StorageFormat, WeightFormat] = {
    StorageFormat.F32: WeightFormat.FP32,
    StorageFormat.BF16: WeightFormat.BF16,
    StorageFormat.Q8_0: WeightFormat.INT8,
    StorageFormat.Q5_0: WeightFormat.INT8,
    StorageFormat.Q4_0: WeightFormat.INT4,
    StorageFormat.Q4_1: WeightFormat.INT4Z,
}
