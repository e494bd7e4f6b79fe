"""Symmetric int4 with compensation: what rounding the weights of some inputs does to a matrix's outputs, the weights of
the inputs that are not rounded yet make up for.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (2022).
Inputs are rounded in their order, group after group; a group's scales are fitted when it is reached, to the weights as
they are by then. Rows do not depend on each other. What matrices before this one have done to its inputs can be made
up for too, as Li et al. do ("GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration", 2025): the
weights that are rounded are those that come nearest to the outputs which exact weights had for exact inputs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimaran.kernels.step import Float32
from trimaran.quant import symmetric
from trimaran.quant.symmetric import OnGrid, Rounded

DAMPING = (
    0.05  # of the mean of the diagonal is added to it: some thousands of tokens say no more of thousands of inputs
)

Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Factor:
    """``upper`` is triangular, and ``upper.T @ upper`` the inverse of the damped moments of inputs in ``order``.

    ``drift`` ``[inputs, inputs]``: what ``weights @ drift`` adds to weights brings their outputs for inputs as they are
    near those for inputs as they were, by least squares; ``None`` where nothing has changed them.
    """

    upper: Float32
    order: Places
    drift: Float32 | None = None

    def shifted(self, weights: Float32) -> Float32:
        """A copy of ``weights`` with what ``drift`` adds."""
        return weights.copy() if self.drift is None else weights + weights @ self.drift


def factor(moments: Float32, order: Places, lost: Float32 | None = None) -> Factor:
    """The factor of ``moments`` ``[inputs, inputs]``, X^T X of what a matrix is multiplied with.

    They must be finite, need no full rank, and are used up: their memory may become the factor's. ``order`` is that in
    which inputs are rounded. ``lost`` is (E - X)^T X, with E the inputs that exact matrices before this one make.
    Raises ``numpy.linalg.LinAlgError`` where float32 is too coarse for such moments.
    """
    upper = moments if (order == np.arange(len(order))).all() else moments[np.ix_(order, order)]
    diagonal = np.einsum("ii->i", upper)
    diagonal += np.float32(DAMPING * float(diagonal.mean(dtype=np.float64)) or 1)
    _split(upper)
    _invert(upper)
    return Factor(upper, order, None if lost is None else _drift(lost, upper, order))


def _drift(lost: Float32, upper: Float32, order: Places) -> Float32:
    """``lost`` times the inverse of the moments, in its place, a few rows at a time."""
    for at in range(0, len(lost), _STRIP):
        strip = slice(at, at + _STRIP)
        lost[strip, order] = (lost[strip, order] @ upper.T) @ upper
    return lost


def _split(moments: Float32) -> None:
    """Makes of them, in their place, the upper triangular R with ``R @ R.T`` the moments, the last rows first."""
    for start in reversed(range(0, len(moments), _BLOCK)):
        block = slice(start, start + _BLOCK)
        corner = np.linalg.cholesky(moments[block, block][::-1, ::-1])[::-1, ::-1]
        beside = moments[:start, block] @ np.linalg.inv(corner).T
        for at in range(0, start, _STRIP):
            moments[at : min(at + _STRIP, start), :start] -= beside[at : at + _STRIP] @ beside.T
        moments[block, :start] = 0
        moments[block, block], moments[:start, block] = corner, beside


def _invert(upper: Float32) -> None:
    """Inverts an upper triangular matrix in its place."""
    size = len(upper)
    if size <= _BLOCK:
        upper[:] = np.triu(np.linalg.inv(upper))
        return
    half = size // 2
    _invert(upper[:half, :half])
    _invert(upper[half:, half:])
    for at in range(0, half, _STRIP):
        strip = slice(at, min(at + _STRIP, half))
        upper[strip, half:] = upper[strip, half:] @ upper[half:, half:]
    upper[:half, half:] = -upper[:half, :half] @ upper[:half, half:]


_BLOCK = 128
_STRIP = 1024  # rows that are changed at a time


def compensate(values: Float32, factor: Factor, group: int, on_grid: OnGrid) -> Rounded:
    """``values`` ``[rows, inputs]`` in groups of ``group`` inputs, with the factor of their moments in their own order.

    ``error`` is the plain squared error of the weights, which compensation makes larger: it is the outputs that are
    closer.
    """
    rows, inputs = values.shape
    upper = factor.upper
    codes = np.empty((rows, inputs // group, group), np.float32)
    scale = np.empty((rows, inputs // group), np.float32)
    left = np.ascontiguousarray(factor.shifted(values).T)  # an input's weights side by side
    for number in range(inputs // group):
        first, after = number * group, (number + 1) * group
        now, steps = left[first:after], np.diagonal(upper)[first:after]
        fitted = symmetric.fit(now.T[:, None].copy(), on_grid, np.square(1 / steps)).scale[:, 0]
        per_step = np.divide(1, fitted, out=np.zeros_like(fitted), where=fitted != 0)
        missed = np.empty_like(now)
        for i in range(group):
            code = np.clip(np.rint(now[i] * per_step), -8, 7)
            codes[:, number, i] = code
            missed[i] = (now[i] - code * fitted) / steps[i]
            now[i + 1 :] -= upper[first + i, first + i + 1 : after, None] * missed[i]
        scale[:, number] = fitted
        left[after:] -= upper[first:after, after:].T @ missed
    error = float(np.square(codes * scale[..., None] - values.reshape(codes.shape)).sum(dtype=np.float64))
    return Rounded(codes, scale, error)
