"""What the numbers of a ``Weight`` mean: the one reader of each canonical form. ``quant/`` writes them."""

from functools import cache

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import FP8_BLOCK, GROUP, WeightFormat
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight


def dequantise(weight: Weight) -> Float32:
    """The weight as float32 of ``weight.shape``; each product and sum is rounded to float32 once."""
    match weight.fmt:
        case WeightFormat.FP32:
            return np.ascontiguousarray(weight.data, np.float32).reshape(weight.shape)
        case WeightFormat.BF16:
            return (weight.data.astype(np.uint32) << 16).view(np.float32)
        case WeightFormat.INT8:
            return _by_groups(weight, weight.data)
        case WeightFormat.INT4:
            return _by_groups(weight, unpack_nibbles(weight.data.view(np.uint8)).astype(np.int8) - 8)
        case WeightFormat.INT4Z:
            return _by_groups(weight, unpack_nibbles(weight.data.view(np.uint8)))
        case WeightFormat.FP8:
            return _e4m3(weight)
        case WeightFormat.CODEBOOK4 | WeightFormat.CODEBOOK3:
            return _from_levels(weight)


def unpack_nibbles(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """``[rows, cols / 2]`` packed bytes to ``[rows, cols]`` values 0 to 15."""
    packed = data.reshape(*data.shape[:-1], -1, GROUP // 2)
    return np.concatenate([packed & 15, packed >> 4], axis=-1).reshape(*data.shape[:-1], -1)


def pack_nibbles(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The inverse of ``unpack_nibbles``."""
    low, high = np.split(values.reshape(*values.shape[:-1], -1, GROUP), 2, axis=-1)
    packed: npt.NDArray[np.uint8] = np.bitwise_or(low, high << 4, dtype=np.uint8)
    return packed.reshape(*values.shape[:-1], -1)


def _by_groups(weight: Weight, integers: npt.NDArray[np.generic]) -> Float32:
    assert weight.scale is not None, weight.name
    groups = integers.reshape(weight.shape[0], -1, GROUP).astype(np.float32)
    groups *= weight.scale.astype(np.float32)[..., None]
    if weight.fmt is WeightFormat.INT4Z:
        assert weight.minimum is not None, weight.name
        groups += weight.minimum.astype(np.float32)[..., None]
    return groups.reshape(weight.shape)


def _e4m3(weight: Weight) -> Float32:
    assert weight.scale is not None, weight.name
    values: Float32 = _e4m3_numbers().take(weight.data.view(np.uint8))
    values *= np.repeat(weight.scale, FP8_BLOCK, axis=1)[:, : weight.shape[1]]
    return values


@cache
def _e4m3_numbers() -> Float32:
    import ml_dtypes  # here: engines without such weights do without it

    numbers: Float32 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return numbers


def _from_levels(weight: Weight) -> Float32:
    assert weight.scale is not None, weight.name
    assert weight.codebook is not None, weight.name
    levels = weight.codebook.astype(np.float32) * weight.scale.astype(np.float32)[:, None]
    values: Float32 = np.take_along_axis(levels, unpack_nibbles(weight.data.view(np.uint8)).astype(np.intp), axis=1)
    if (outliers := weight.outliers) is not None:
        rows = np.repeat(np.arange(weight.shape[0]), np.diff(outliers.starts))
        values[rows, outliers.columns] += outliers.values.astype(np.float32)
    return values
