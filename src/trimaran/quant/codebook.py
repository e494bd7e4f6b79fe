"""Codebooks: each row's numbers are codes of 4 or 3 bits for levels of its own, which are ``scale * int8``.

A row is first rounded to int8; k-means of how often (or how much) each of the 255 integers counts gives the levels. In
one dimension clusters are intervals, so that prefix sums give their means: an iteration costs a few reads a level,
however long the row is.
"""

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import pack_nibbles
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant.groups import as_groups, as_half

Levels = npt.NDArray[np.int8]

_MOST = 127
_ITERATIONS = 24


def quantise(name: str, values: Float32, fmt: WeightFormat, importance: Float32 | None = None) -> Weight:
    """``values`` ``[rows, cols]`` on levels with the least squared error, each error times ``importance`` ``[rows or 1,
    cols]``; without outliers.

    Raises ``UnsupportedError`` as ``quant.int8.quantise`` does.
    """
    as_groups(name, values)
    scale = as_half(name, np.abs(values).max(axis=-1) / _MOST)
    step = np.broadcast_to(scale.astype(np.float32)[:, None], values.shape)
    integers = np.rint(np.divide(values, step, out=np.zeros_like(values), where=step != 0))
    integers = np.clip(integers, -_MOST, _MOST).astype(np.int16)
    levels = fit_levels(_weights(integers, importance), fmt.levels)
    codes = nearest_levels(levels)
    nibbles = np.take_along_axis(codes, (integers + _MOST).astype(np.intp), axis=1)
    return Weight(name, fmt, values.shape, pack_nibbles(nibbles), scale, codebook=levels)


def fit_levels(weights: npt.NDArray[np.float64], count: int) -> Levels:
    """``count`` ascending levels for each row of ``weights`` ``[rows, 255]``: how much -127 to 127 count."""
    integers = np.arange(-_MOST, _MOST + 1)
    mass, moment = _sums(weights), _sums(weights * integers)
    shares = (np.arange(count) + 0.5) / count
    total = np.maximum(mass[:, -1:], np.finfo(np.float64).tiny)
    spread = _sums(np.cbrt(weights))  # the best density of many levels is the cube root of that of the numbers
    targets = spread[:, -1:] * shares
    levels = (spread[:, None, 1:] < targets[..., None]).sum(axis=-1) - float(_MOST)
    for _ in range(_ITERATIONS):
        edges = _edges(levels)
        above = np.diff(np.take_along_axis(moment, edges, axis=1), axis=1)
        below = np.diff(np.take_along_axis(mass, edges, axis=1), axis=1)
        levels = np.divide(above, below, out=levels.copy(), where=below > 1e-12 * total)
    rounded: Levels = np.clip(np.rint(levels), -_MOST, _MOST).astype(np.int8)
    return rounded


def nearest_levels(levels: Levels) -> npt.NDArray[np.uint8]:
    """For ascending ``levels`` ``[rows, count]`` the code that is nearest to each of -127 to 127, ``[rows, 255]``."""
    middles = (levels[:, 1:].astype(np.float32) + levels[:, :-1].astype(np.float32)) / 2
    integers = np.arange(-_MOST, _MOST + 1, dtype=np.float32)
    codes = np.zeros((len(levels), len(integers)), np.uint8)
    for middle in middles.T:
        codes += integers > middle[:, None]
    return codes


def _weights(integers: npt.NDArray[np.int16], importance: Float32 | None) -> npt.NDArray[np.float64]:
    """How much each of -127 to 127 counts in each row."""
    rows, places = len(integers), 2 * _MOST + 1
    bins = integers.astype(np.int64) + _MOST + np.arange(rows)[:, None] * places
    each = None if importance is None else np.broadcast_to(importance, integers.shape).ravel()
    return np.bincount(bins.ravel(), each, rows * places).reshape(rows, places).astype(np.float64)


def _sums(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Sums of the first 0 to 255 columns."""
    sums = np.zeros((len(weights), weights.shape[1] + 1))
    np.cumsum(weights, axis=1, out=sums[:, 1:])
    return sums


def _edges(levels: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Where the clusters of ascending levels begin and end, as counts of the integers before."""
    middles = np.floor((levels[:, 1:] + levels[:, :-1]) / 2) + _MOST + 1
    first = np.zeros((len(levels), 1))
    return np.concatenate([first, middles, first + 2 * _MOST + 1], axis=1).astype(np.intp)
