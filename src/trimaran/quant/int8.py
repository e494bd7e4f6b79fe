"""int8 in groups of 32: ``scale * q``, the grid of GGUF's Q8_0."""

import numpy as np

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import unpack_nibbles
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant.groups import as_groups, as_half


def quantise(name: str, values: Float32) -> Weight:
    """``values`` ``[rows, cols]`` in steps of absmax / 127 of each group, rounded against the scale as stored.

    Raises ``UnsupportedError`` when ``cols`` is no multiple of 32 or a scale does not fit fp16.
    """
    x = as_groups(name, values)
    scale = as_half(name, np.abs(x).max(axis=-1) / 127)
    step = np.broadcast_to(scale.astype(np.float32)[..., None], x.shape)
    q = np.divide(x, step, out=np.zeros_like(x), where=step != 0)
    data = np.clip(np.rint(q), -127, 127).astype(np.int8).reshape(values.shape)
    return Weight(name, WeightFormat.INT8, values.shape, data, scale)


def from_int4(weight: Weight) -> Weight:
    """Symmetric int4 as int8 without loss: the same scales times q - 8."""
    assert weight.fmt is WeightFormat.INT4, weight.name
    data = unpack_nibbles(weight.data.view(np.uint8)).astype(np.int8) - np.int8(8)
    return Weight(weight.name, WeightFormat.INT8, weight.shape, data, weight.scale)
