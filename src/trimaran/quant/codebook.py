"""Codebooks: each row's numbers are codes of 4 or 3 bits for levels of its own, which are ``scale * int8``.

A row is first rounded to int8; k-means of how often (or how much) each of the 255 integers counts gives the levels. In
one dimension clusters are runs, so that prefix sums give what a cluster costs, however long the row is.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise, pack_nibbles
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Outliers, Weight
from trimaran.quant.groups import as_groups, as_half

Float64 = npt.NDArray[np.float64]
Levels = npt.NDArray[np.int8]
Places = npt.NDArray[np.intp]

MOST = 127  # the largest level
_REACH = 8  # integers that an end may move in a round
_ROUNDS = 2


def quantise(name: str, values: Float32, fmt: WeightFormat, importance: Float32 | None = None) -> Weight:
    """``values`` ``[rows, cols]`` on levels with the least squared error, each error times ``importance`` ``[rows or 1,
    cols]``.

    Raises ``UnsupportedError`` as ``quant.int8.quantise`` does.
    """
    as_groups(name, values)
    scale = as_half(name, np.abs(values).max(axis=-1) / MOST)
    step = np.broadcast_to(scale.astype(np.float32)[:, None], values.shape)
    integers = np.rint(np.divide(values, step, out=np.zeros_like(values), where=step != 0))
    integers = np.clip(integers, -MOST, MOST).astype(np.int16)
    levels = fit_levels(_weights(integers, importance), fmt.levels)
    codes = nearest_levels(levels)
    nibbles = np.take_along_axis(codes, (integers + MOST).astype(np.intp), axis=1)
    return Weight(name, fmt, values.shape, pack_nibbles(nibbles), scale, codebook=levels)


def quantise_apart(
    name: str, values: Float32, fmt: WeightFormat, count: int, importance: Float32 | None = None
) -> Weight:
    """As ``quantise``, with the ``count`` largest magnitudes of each row apart: levels need not reach them.

    They are outliers of what their level leaves, in fp16.
    """
    if not count:
        return quantise(name, values, fmt, importance)
    columns = np.argpartition(np.abs(values), -count, axis=1)[:, -count:]
    columns.sort(axis=1)
    inner, weights = values.copy(), np.ones_like(values)
    if importance is not None:
        weights *= importance
    for array in (inner, weights):
        np.put_along_axis(array, columns, np.float32(0), axis=1)
    weight = quantise(name, inner, fmt, weights)
    rest = np.take_along_axis(values - dequantise(weight), columns, axis=1)
    starts = np.arange(len(values) + 1, dtype=np.int32) * np.int32(count)
    outliers = Outliers(starts, columns.astype(np.int32).ravel(), as_half(name, rest).ravel())
    return replace(weight, outliers=outliers)


def fit_levels(weights: Float64, count: int) -> Levels:
    """``count`` ascending levels for each row of ``weights`` ``[rows, 255]``: how much -127 to 127 count.

    Clusters are runs of integers, and dynamic programming finds the best of all whose ends lie near those of a first
    guess, then near those found. The squared error is within 3 % of the least possible, where Lloyd's algorithm stops
    10 to 100 % above it (``tests/quant/test_codebook.py`` has the exact search).
    """
    mass, moment = _sums(weights), _sums(weights * np.arange(-MOST, MOST + 1))
    ends = _first_ends(weights, count)
    for _ in range(_ROUNDS):
        ends = _best_ends(mass, moment, ends)
    below, above = (np.diff(np.take_along_axis(sums, ends, axis=1), axis=1) for sums in (mass, moment))
    means = np.divide(above, below, out=ends[:, :-1] - float(MOST), where=below > 0)  # of no integers: any in its order
    rounded: Levels = np.clip(np.rint(means), -MOST, MOST).astype(np.int8)
    return rounded


def _first_ends(weights: Float64, count: int) -> Places:
    """``[rows, count + 1]``, how many integers lie below each end.

    The best levels, if many, lie as densely as the cube root of the density (Panter and Dite, 1951); that is taken over
    ``2 * _REACH + 1`` integers.
    """
    places = np.arange(weights.shape[1])
    mass = _sums(weights)
    near = mass[:, np.minimum(places + _REACH + 1, len(places))] - mass[:, np.maximum(places - _REACH, 0)]
    spread = _sums(np.cbrt(near))
    shares = spread[:, -1:] * np.arange(count + 1) / count
    ends: Places = (spread[:, None, :] < shares[..., None]).sum(axis=-1)
    ends[:, 0], ends[:, -1] = 0, len(places)
    return ends


def _best_ends(mass: Float64, moment: Float64, ends: Places) -> Places:
    """The best ends of clusters that are at most ``_REACH`` integers away from ``ends``.

    A cluster lowers the squared error by ``moment^2 / mass``, so that the sum of this is what grows.
    """
    rows, count = len(ends), ends.shape[1] - 1
    reach = np.arange(-_REACH, _REACH + 1)
    begins, gains = ends[:, :1], np.zeros((rows, 1))
    candidates, choices = [begins], []
    for cluster in range(1, count + 1):
        stops = ends[:, -1:] if cluster == count else np.clip(ends[:, cluster, None] + reach, 0, ends[:, -1:])
        below, above = (
            np.take_along_axis(sums, stops, axis=1)[:, None, :] - np.take_along_axis(sums, begins, axis=1)[:, :, None]
            for sums in (mass, moment)
        )
        np.square(above, out=above)
        gain = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
        gain += gains[:, :, None]
        gain[stops[:, None, :] < begins[:, :, None]] = -np.inf
        choice = gain.argmax(axis=1)
        gains = np.take_along_axis(gain, choice[:, None, :], axis=1)[:, 0]
        choices.append(choice)
        candidates.append(stops)
        begins = stops
    best = ends.copy()
    at = np.zeros((rows, 1), np.intp)
    for cluster in range(count - 1, 0, -1):
        at = np.take_along_axis(choices[cluster], at, axis=1)
        best[:, cluster, None] = np.take_along_axis(candidates[cluster], at, axis=1)
    return best


def nearest_levels(levels: Levels) -> npt.NDArray[np.uint8]:
    """For ascending ``levels`` ``[rows, count]`` the code that is nearest to each of -127 to 127, ``[rows, 255]``."""
    middles = (levels[:, 1:].astype(np.float32) + levels[:, :-1].astype(np.float32)) / 2
    integers = np.arange(-MOST, MOST + 1, dtype=np.float32)
    codes = np.zeros((len(levels), len(integers)), np.uint8)
    for middle in middles.T:
        codes += integers > middle[:, None]
    return codes


def _weights(integers: npt.NDArray[np.int16], importance: Float32 | None) -> Float64:
    """How much each of -127 to 127 counts in each row."""
    rows, places = len(integers), 2 * MOST + 1
    bins = integers.astype(np.int64) + MOST + np.arange(rows)[:, None] * places
    each = None if importance is None else np.broadcast_to(importance, integers.shape).ravel()
    return np.bincount(bins.ravel(), each, rows * places).reshape(rows, places).astype(np.float64)


def _sums(weights: Float64) -> Float64:
    """Sums of the first 0 to 255 columns."""
    sums = np.zeros((len(weights), weights.shape[1] + 1))
    np.cumsum(weights, axis=1, out=sums[:, 1:])
    return sums
