"""int4 in groups of 32: symmetric ``scale * (q - 8)``, or with zero point ``scale * q + minimum``.

These are the grids of GGUF's Q4_0 and Q4_1.

Both start from GGUF's choice of scale, fit scale (and minimum) to the rounded values by least squares and round once
more; each group keeps the fit with the smaller squared error.
"""

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import pack_nibbles
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant.groups import as_groups, as_half

Half = npt.NDArray[np.float16]


def quantise(name: str, values: Float32) -> Weight:
    """Symmetric int4 of ``values`` ``[rows, cols]``; raises ``UnsupportedError`` as ``quant.int8.quantise`` does."""
    x = as_groups(name, values)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)[..., 0]
    scale = as_half(name, extreme * np.float32(-1 / 8))  # the value largest in magnitude gets the code 0
    q = _round(x, scale, _symmetric(scale))
    refined = as_half(name, _ratio((x * (q - 8)).sum(axis=-1), ((q - 8) ** 2).sum(axis=-1)))
    again = _round(x, refined, _symmetric(refined))
    better = _error(x, again, refined, _symmetric(refined)) < _error(x, q, scale, _symmetric(scale))
    data = _pack(np.where(better[..., None], again, q), values.shape)
    return Weight(name, WeightFormat.INT4, values.shape, data, np.where(better, refined, scale))


def quantise_zero_point(name: str, values: Float32) -> Weight:
    """int4 with a minimum per group; raises ``UnsupportedError`` as ``quant.int8.quantise`` does."""
    x = as_groups(name, values)
    low = x.min(axis=-1)
    scale, minimum = as_half(name, (x.max(axis=-1) - low) / 15), as_half(name, low)
    q = _round(x, scale, minimum)
    mean_x, mean_q = x.mean(axis=-1), q.mean(axis=-1)
    centred = q - mean_q[..., None]
    slope = _ratio((x * centred).sum(axis=-1), (centred**2).sum(axis=-1))
    refined, base = as_half(name, slope), as_half(name, mean_x - slope * mean_q)
    again = _round(x, refined, base)
    better = _error(x, again, refined, base) < _error(x, q, scale, minimum)
    data = _pack(np.where(better[..., None], again, q), values.shape)
    scale, minimum = np.where(better, refined, scale), np.where(better, base, minimum)
    return Weight(name, WeightFormat.INT4Z, values.shape, data, scale, minimum)


def add_zero_point(weight: Weight) -> Weight:
    """Symmetric int4 as int4z without loss: the minimum is -8 scales, which fp16 holds exactly."""
    assert weight.scale is not None, weight.name
    minimum = as_half(weight.name, _symmetric(weight.scale))
    return Weight(weight.name, WeightFormat.INT4Z, weight.shape, weight.data, weight.scale, minimum)


def _symmetric(scale: Half) -> Float32:
    return scale.astype(np.float32) * -8


def _round(x: Float32, scale: Half, minimum: Half | Float32) -> Float32:
    """Codes 0 to 15 of ``x`` on the grid; a group whose scale is 0 gets code 0."""
    step = np.broadcast_to(scale.astype(np.float32)[..., None], x.shape)
    codes = np.divide(x - minimum.astype(np.float32)[..., None], step, out=np.zeros_like(x), where=step != 0)
    nearest: Float32 = np.clip(np.rint(codes), 0, 15)
    return nearest


def _error(x: Float32, q: Float32, scale: Half, minimum: Half | Float32) -> Float32:
    grid = q * scale.astype(np.float32)[..., None] + minimum.astype(np.float32)[..., None]
    error: Float32 = np.square(grid - x).sum(axis=-1)
    return error


def _ratio(above: Float32, below: Float32) -> Float32:
    ratio: Float32 = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return ratio


def _pack(q: Float32, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    return pack_nibbles(q.astype(np.uint8).reshape(shape))
