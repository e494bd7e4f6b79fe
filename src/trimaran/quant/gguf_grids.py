"""GGUF's formats whose grid an executor holds: repacked, not rounded a second time.

Of Q4_K and IQ4_XS the codes are kept; the scales (and minima) of their sub-blocks of 32, each a product of two numbers,
are rounded to fp16, which moves a weight far less than a new grid would.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trimaran.base.formats import WeightFormat
from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat
from trimaran.kernels.dequantise import pack_nibbles
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant import gguf_blocks as ggml
from trimaran.quant.gguf_blocks import Bytes, Half, Integers
from trimaran.quant.groups import as_half


def own_grid(tensor: CheckpointTensor) -> WeightFormat | None:
    """The format that holds the tensor's grid, or ``None`` where there is none."""
    if tensor.fmt is StorageFormat.MXFP4 and not _powers_fit_half(tensor):
        return None
    return _PLAIN.get(tensor.fmt) or (_GRIDS[tensor.fmt].fmt if tensor.fmt in _GRIDS else None)


def is_view(fmt: StorageFormat) -> bool:
    """True where a matrix on its grid is what lies in the file."""
    return fmt in _PLAIN


def on_grid(tensor: CheckpointTensor) -> Weight:
    """The matrix in the format that ``own_grid`` names; of F32 and BF16 a view, where the file aligns them."""
    if tensor.fmt in _PLAIN:
        dtype = "<f4" if tensor.fmt is StorageFormat.F32 else "<u2"
        data = np.require(tensor.data.view(dtype), requirements=["C", "A"])
        return Weight(tensor.name, _PLAIN[tensor.fmt], tensor.shape, data)
    grid, blocks = _GRIDS[tensor.fmt], ggml.blocks(tensor)
    codes = np.ascontiguousarray(grid.codes(blocks)).reshape(tensor.shape[0], -1)
    scale = _half(tensor, grid.scale(blocks))
    minimum = None if grid.minimum is None else _half(tensor, grid.minimum(blocks))
    return Weight(tensor.name, grid.fmt, tensor.shape, codes, scale, minimum)


@dataclass(frozen=True)
class _Grid:
    """``codes``: int8, or nibbles in the order of ``Weight``; ``scale`` and ``minimum``: one a group of 32."""

    fmt: WeightFormat
    codes: Callable[[Bytes], Bytes | Integers]
    scale: Callable[[Bytes], Half | Float32]
    minimum: Callable[[Bytes], Half | Float32] | None = None


def _half(tensor: CheckpointTensor, numbers: Half | Float32) -> Half:
    return as_half(tensor.name, numbers.astype(np.float32)).reshape(tensor.shape[0], -1)


def _powers_fit_half(tensor: CheckpointTensor) -> bool:
    scales = ggml.mxfp4_scales(ggml.blocks(tensor))
    return bool((scales >= 2.0**-24).all() and (scales <= 2.0**15).all())


def _first(b: Bytes) -> Half:
    return ggml.half(b[..., :2])


def _second(b: Bytes) -> Half:
    return ggml.half(b[..., 2:4])


_PLAIN = {StorageFormat.F32: WeightFormat.FP32, StorageFormat.BF16: WeightFormat.BF16}
_GRIDS: dict[StorageFormat, _Grid] = {
    StorageFormat.Q8_0: _Grid(WeightFormat.INT8, lambda b: b[..., 2:].view(np.int8), _first),
    StorageFormat.Q5_0: _Grid(WeightFormat.INT8, ggml.q5_0_codes, _first),
    StorageFormat.Q4_0: _Grid(WeightFormat.INT4, lambda b: b[..., 2:], _first),
    StorageFormat.Q4_1: _Grid(WeightFormat.INT4Z, lambda b: b[..., 4:], _first, _second),
    StorageFormat.Q4_K: _Grid(
        WeightFormat.INT4Z,
        lambda b: pack_nibbles(ggml.k_nibbles(b[..., 16:])),
        lambda b: ggml.k_scales(b)[0],
        lambda b: -ggml.k_scales(b)[1],
    ),
    StorageFormat.IQ4_NL: _Grid(WeightFormat.INT8, lambda b: ggml.iq4_codes(b[..., 2:]), _first),
    StorageFormat.IQ4_XS: _Grid(WeightFormat.INT8, ggml.iq4_xs_codes, ggml.iq4_xs_scales),
    StorageFormat.MXFP4: _Grid(WeightFormat.INT8, ggml.mxfp4_codes, ggml.mxfp4_scales),
}
