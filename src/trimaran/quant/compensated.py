"""Symmetric int4 with compensation: what rounding the weights of some inputs does to a matrix's outputs, the weights of
the inputs that are not rounded yet make up for.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (2022).
Inputs are rounded in their order, group after group; a group's scales are fitted when it is reached, to the weights as
they are by then. Rows do not depend on each other.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimaran.kernels.step import Float32
from trimaran.quant import symmetric
from trimaran.quant.symmetric import OnGrid, Rounded

DAMPING = 0.01  # of the mean of the moments' diagonal is added to it


Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Factor:
    """``upper`` is triangular, and ``upper.T @ upper`` the inverse of the damped moments of inputs in ``order``."""

    upper: Float32
    order: Places


def factor(moments: Float32, order: Places) -> Factor:
    """The factor of ``moments`` ``[inputs, inputs]``, X^T X of what a matrix is multiplied with.

    They must be finite, and need no full rank. ``order`` is that in which inputs are rounded.
    """
    return Factor(_factor(moments[np.ix_(order, order)]), order)


def _factor(moments: Float32) -> Float32:
    diagonal = np.diagonal(moments)
    damping = DAMPING * float(diagonal.mean(dtype=np.float64)) or 1.0
    for _ in range(_TRIES):
        damped = moments[::-1, ::-1].copy()
        np.einsum("ii->i", damped)[:] += np.float32(damping)
        try:
            lower = np.linalg.cholesky(damped)
        except np.linalg.LinAlgError:
            damping *= 10
            continue
        return _inverse(np.ascontiguousarray(lower[::-1, ::-1]))
    raise AssertionError("moments that are finite have a factor")


_TRIES = 8


def _inverse(upper: Float32) -> Float32:
    """Of an upper triangular matrix."""
    size = len(upper)
    if size <= _LEAF:
        inverse: Float32 = np.linalg.inv(upper)
        return inverse
    half = size // 2
    out = np.zeros_like(upper)
    out[:half, :half] = _inverse(upper[:half, :half])
    out[half:, half:] = _inverse(upper[half:, half:])
    out[:half, half:] = -out[:half, :half] @ (upper[:half, half:] @ out[half:, half:])
    return out


_LEAF = 128


def compensate(values: Float32, factor: Factor, group: int, on_grid: OnGrid) -> Rounded:
    """``values`` ``[rows, inputs]`` in groups of ``group`` inputs, with the factor of their moments in their own order.

    ``error`` is the plain squared error of the weights, which compensation makes larger: it is the outputs that are
    closer.
    """
    rows, inputs = values.shape
    upper = factor.upper
    codes = np.empty((rows, inputs // group, group), np.float32)
    scale = np.empty((rows, inputs // group), np.float32)
    left = np.ascontiguousarray(values.T)  # an input's weights side by side
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
