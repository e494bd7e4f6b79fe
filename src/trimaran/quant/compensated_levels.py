"""Codebooks with compensation: as ``quant/compensated.py``, for weights that are rounded to levels of their row.

Levels are fitted before, and what an error costs, after the other inputs made up for it, is how much it counts there.
Inputs are rounded in the order of the factor: those with the largest squares first ("act order" in GPTQ's program),
while most of the others can still make up for them.
"""

from dataclasses import replace

import numpy as np

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import pack_nibbles
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Outliers, Weight
from trimaran.quant.codebook import MOST, nearest_levels, quantise_apart
from trimaran.quant.compensated import Factor
from trimaran.quant.groups import as_half

_BLOCK = 64  # inputs after which the others are told, all at once


def quantise_together(name: str, values: Float32, fmt: WeightFormat, count: int, factor: Factor) -> Weight:
    """``values`` ``[rows, cols]`` on levels, ``count`` weights of each row apart; ``factor`` is of their inputs.

    Raises ``UnsupportedError`` as ``quant.int8.quantise`` does.
    """
    upper, order, cols = factor.upper, factor.order, values.shape[1]
    values = factor.shifted(values)
    steps = np.diagonal(upper)
    importance = np.empty(cols, np.float32)
    importance[order] = np.square(1 / steps)
    rounding = _Rounding(quantise_apart(name, values, fmt, count, importance))
    left = np.ascontiguousarray(values.T[order])  # an input's weights side by side
    for first in range(0, cols, _BLOCK):
        after = min(first + _BLOCK, cols)
        missed = np.empty((after - first, len(values)), np.float32)
        for i in range(first, after):
            error = (left[i] - rounding.round(order[i], left[i])) / steps[i]
            left[i + 1 : after] -= upper[i, i + 1 : after, None] * error
            missed[i - first] = error
        left[after:] -= upper[first:after, after:].T @ missed
    return rounding.weight()


class _Rounding:
    """Rounds one input's weights after the other to levels and outliers that lie where those of ``plain`` do."""

    def __init__(self, plain: Weight) -> None:
        assert plain.codebook is not None, plain.name
        assert plain.scale is not None, plain.name
        rows, cols = plain.shape
        scale = plain.scale.astype(np.float32)
        self._plain = plain
        self._per_step = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        self._levels = plain.codebook.astype(np.float32) * scale[:, None]
        self._nearest = nearest_levels(plain.codebook)
        self._rows = np.arange(rows)
        self._codes = np.zeros((cols, rows), np.uint8)
        self._apart = np.zeros((cols, rows), bool)
        self._added = np.zeros((cols, rows), np.float16)
        if plain.outliers is not None:
            self._apart[plain.outliers.columns, np.repeat(self._rows, np.diff(plain.outliers.starts))] = True

    def round(self, column: int, weights: Float32) -> Float32:
        """What ``weights`` ``[rows]`` of an input become."""
        integers = np.clip(np.rint(weights * self._per_step), -MOST, MOST).astype(np.intp) + MOST
        codes = self._codes[column] = self._nearest[self._rows, integers]
        rounded = self._levels[self._rows, codes]
        apart = self._apart[column]
        if apart.any():
            rest = as_half(self._plain.name, np.where(apart, weights - rounded, np.float32(0)))
            self._added[column] = rest
            rounded += rest
        return rounded

    def weight(self) -> Weight:
        """When all inputs are rounded."""
        outliers = self._plain.outliers
        if outliers is not None:
            rows = np.repeat(self._rows, np.diff(outliers.starts))
            outliers = Outliers(outliers.starts, outliers.columns, self._added[outliers.columns, rows])
        return replace(self._plain, data=pack_nibbles(np.ascontiguousarray(self._codes.T)), outliers=outliers)
