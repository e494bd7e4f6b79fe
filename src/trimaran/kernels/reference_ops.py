"""The arithmetic of the ops as plain functions of NumPy arrays: the definition that every executor is held against.

Arrays are float32 or float64 and results have the type of the first argument. A row's bits depend on that row alone.
"""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trimaran.base.formats import GROUP, KEY_GROUP
from trimaran.kernels.program import Activation, Route

Array = npt.NDArray[Any]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """``weight * x / sqrt(mean(x^2) + eps)`` of each row ``[rows, width]``."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    normed: Array = x / np.sqrt(mean_square + eps)
    return weight * normed


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """``weight * (x - mean) / sqrt(variance + eps) + bias`` of each row ``[rows, width]``."""
    centred = x - x.mean(axis=-1, keepdims=True)
    normed: Array = centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
    return weight * normed + bias


def gelu(x: Array) -> Array:
    """``x / 2 * (1 + erf(x / sqrt(2)))``."""
    erf: Array = np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))
    out: Array = (x / 2 * (1 + erf)).astype(x.dtype)
    return out


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """``x @ weight.T + bias`` for ``x`` ``[rows, in]`` and ``weight`` ``[out, in]``.

    One product of the matrix with each row, because BLAS sums in another order when it is given several.
    """
    out = np.empty((len(x), len(weight)), x.dtype)
    for row, result in zip(x, out, strict=True):
        np.dot(weight, row, out=result)
    return out if bias is None else out + bias


def through_int8(x: Array, *, wide: bool = False) -> Array:
    """``x`` as a linear layer with int8 activations sees it.

    Per group of 32: ``scale = absmax / 127``, ``q = round_half_even(x * (127 / absmax))``; zeros have scale 0. Of a
    ``wide`` input, groups whose ``absmax`` squared is at least half the row's mean of it also keep what this rounding
    left, as a second int8 in steps of ``scale / 256``.
    """
    groups = x.reshape(len(x), x.shape[1] // GROUP, GROUP)
    absmax = np.abs(groups).max(axis=-1, keepdims=True)
    scaled = groups * np.divide(127, absmax, out=np.zeros_like(absmax), where=absmax > 0)
    q = np.rint(scaled)
    if wide:
        squares = np.square(absmax)
        mean = np.cumsum(squares, axis=1, dtype=x.dtype)[:, -1:] / x.dtype.type(squares.shape[1])
        left = np.rint((scaled - q) * 256).clip(-127, 127) / 256
        q += np.where(squares >= mean / 2, left, 0)
    out: Array = q * (absmax / 127)
    return out.reshape(x.shape)


def rotate(heads: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding of ``heads`` ``[rows, heads, head_dim]`` by ``cos`` and ``sin`` ``[rows, dims / 2]``.

    Pairs are (i, i + dims/2) of the first ``dims`` dimensions; the others pass through.
    """
    half = cos.shape[-1]
    a, b, rest = np.split(heads, [half, 2 * half], axis=-1)
    c, s = cos[:, None, :], sin[:, None, :]
    return np.concatenate([a * c - b * s, b * c + a * s, rest], axis=-1)


def attend(q: Array, keys: Array, values: Array, scale: float) -> Array:
    """Attention of one row: ``q`` ``[heads, dim]`` over ``keys`` and ``values`` ``[tokens, kv_heads, dim]``.

    Query head h reads kv head ``h // (heads // kv_heads)``. The result is ``[heads, dim]``.
    """
    grouped = q.reshape(keys.shape[1], -1, q.shape[-1])  # [kv_heads, group, dim]
    scores = grouped @ keys.transpose(1, 2, 0) * scale  # [kv_heads, group, tokens]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Array = weights @ values.transpose(1, 0, 2)
    return out.reshape(q.shape)


KV_BLOCK = 128  # tokens whose attention weights are rounded together, at absolute positions


def hadamard(x: Array, width: int) -> Array:
    """Every ``width`` entries along the last axis times the orthogonal Hadamard matrix, which is its own inverse."""
    index = np.arange(width)
    odd = np.bitwise_count(index[:, None] & index) % 2 == 1
    matrix = (np.where(odd, -1, 1) / math.sqrt(width)).astype(x.dtype)
    out: Array = x.reshape(*x.shape[:-1], x.shape[-1] // width, width) @ matrix
    return out.reshape(x.shape)


def to_int8(x: Array) -> tuple[Array, Array]:
    """``x`` as integers -127..127 (still of ``x``'s type) and a scale, absmax / 127, per vector along the last axis."""
    absmax = np.abs(x).max(axis=-1, keepdims=True)
    q = np.rint(x * np.divide(127, absmax, out=np.zeros_like(absmax), where=absmax > 0))
    return q, absmax[..., 0] / 127


def value_to_int4(x: Array, width: int) -> tuple[Array, Array]:
    """``x`` as integers 0..15, which stand for themselves less 7.5, and per ``width`` along the last axis a bf16 scale,
    absmax / 7.5: ``[..., groups]``."""
    codes, scales = np.empty_like(x), []
    for first in range(0, x.shape[-1], width):
        group = x[..., first : first + width]
        scale = to_bf16(np.abs(group).max(axis=-1, keepdims=True) / 7.5)
        codes[..., first : first + width] = np.rint(group * _inverse(scale) + 7.5)
        scales.append(scale)
    return codes, np.concatenate(scales, axis=-1)


def key_to_int4(x: Array) -> tuple[Array, Array]:
    """``x`` as integers 0..15 and, per ``GROUP`` along the last axis, ``[..., groups, 2]``: scale and minimum in bf16.

    They stand for ``scale * q + minimum``.
    """
    codes, terms = np.empty_like(x), []
    for first in range(0, x.shape[-1], GROUP):
        group = x[..., first : first + GROUP]
        minimum = to_bf16(group.min(axis=-1, keepdims=True))
        scale = to_bf16((group.max(axis=-1, keepdims=True) - minimum).clip(0) / 15)
        q = np.rint((group - minimum) * _inverse(scale))
        codes[..., first : first + GROUP] = q.clip(0, 15)
        terms.append(np.concatenate([scale, minimum], axis=-1))
    return codes, np.stack(terms, axis=-2)


def key_to_fine_int4(x: Array) -> tuple[Array, Array, Array]:
    """``x`` as ``key_to_int4`` has it, but per ``KEY_GROUP``, with ``terms`` ``[..., groups, 2]`` of 8 bits and bf16
    units ``[..., 2]``, each the largest term that is needed over what 8 bits count to.

    They stand for ``scale * q + minimum`` with ``scale = terms[0] * units[0]``, which was rounded up, and ``minimum =
    (terms[1] - 128) * units[1]``, which was rounded down.
    """
    groups = [x[..., first : first + KEY_GROUP] for first in range(0, x.shape[-1], KEY_GROUP)]
    lows, highs = (np.stack([of(group, axis=-1) for group in groups], axis=-1) for of in (np.min, np.max))
    unit = to_bf16(np.abs(lows).max(axis=-1, keepdims=True) / 127)
    floors = np.floor(lows * _inverse(unit)).clip(-128, 127)
    scales = (highs - floors * unit).clip(0) / 15
    step = to_bf16(scales.max(axis=-1, keepdims=True) / 255)
    steps = np.ceil(scales * _inverse(step)).clip(0, 255)
    inverses, minima = _inverse(steps * step), floors * unit
    codes = [
        np.rint((group - minima[..., i, None]) * inverses[..., i, None]).clip(0, 15) for i, group in enumerate(groups)
    ]
    terms, units = np.stack([steps, floors + 128], axis=-1), np.concatenate([step, unit], axis=-1)
    return np.concatenate(codes, axis=-1), terms, units


def _inverse(x: Array) -> Array:
    """``1 / x``, of zeros 0."""
    return np.divide(1, x, out=np.zeros_like(x), where=x > 0)


def to_bf16(x: Array) -> Array:
    """``x`` rounded half to even, in its own type."""
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(x.dtype)


def to_e4m3(x: Array) -> tuple[Array, Array]:
    """``x`` within what e4m3 can hold, not yet rounded, and a scale, absmax / 448, per vector along the last axis."""
    absmax = np.abs(x).max(axis=-1, keepdims=True)
    return x * np.divide(448, absmax, out=np.zeros_like(absmax), where=absmax > 0), absmax[..., 0] / 448


NOT_FINITE = -128  # what an int8 of a static format is for a number that is not finite


def clip_to_int8(x: Array, scale: Array) -> Array:
    """``x`` as integers -127..127, times ``scale``; what lies beyond is clipped, what is not finite ``NOT_FINITE``."""
    q = np.rint(x * (1 / scale)).clip(-127, 127)
    return np.where(np.isfinite(x), q, NOT_FINITE)


def clip_to_e4m3(x: Array, scale: Array) -> Array:
    """``x`` within what e4m3 can hold, not yet rounded, times ``scale``; what is not finite is NaN."""
    return np.where(np.isfinite(x), (x * (1 / scale)).clip(-448, 448), np.nan)


def attend_integers(
    q: Array, keys: Array, values: Array, value_scales: Array, scale: float, group: int, first: int = 0
) -> Array:
    """``attend`` over pages of integers: ``q`` and ``keys`` after ``hadamard``, ``keys`` times their scales, ``values``
    without; every ``group`` dimensions of a value have one in ``value_scales`` ``[tokens, kv_heads, dim / group]``.

    ``first`` is the position of the first token. The query is rounded to int8. Within each ``KV_BLOCK`` the weights,
    times the scales of some dimensions, are rounded to 255ths of the largest product.
    """
    rounded, query_scale = to_int8(q)
    grouped = (rounded * query_scale[:, None]).reshape(keys.shape[1], -1, q.shape[-1])  # [kv_heads, group, dim]
    scores = grouped @ keys.transpose(1, 2, 0) * scale  # [kv_heads, group, tokens]
    largest = scores.max(axis=-1, keepdims=True)
    total, out = np.zeros_like(largest), np.zeros_like(grouped)
    for start in range(-(first % KV_BLOCK), len(keys), KV_BLOCK):
        block = slice(max(start, 0), start + KV_BLOCK)
        top = scores[..., block].max(axis=-1, keepdims=True)
        weights = np.exp(scores[..., block] - top)
        share = np.exp(top - largest)
        total += share * weights.sum(axis=-1, keepdims=True)
        for number, begin in enumerate(range(0, q.shape[-1], group)):
            dims = slice(begin, begin + group)
            scaled = weights * value_scales[block, :, number].T[:, None]
            step = scaled.max(axis=-1, keepdims=True) / 255
            integers = np.rint(np.divide(scaled, step, out=np.zeros_like(scaled), where=step > 0))
            out[..., dims] += share * step * (integers @ values[block, :, dims].transpose(1, 0, 2))
    result: Array = out / total
    return result.reshape(q.shape)


def glu(gate_up: Array, activation: Activation) -> Array:
    """``activation(gate) * up`` of rows ``[gate | up]``."""
    gate, up = np.split(gate_up, 2, axis=-1)
    out: Array = _ACTIVATIONS[activation](gate) * up
    return out


def silu(x: Array) -> Array:
    """``x / (1 + exp(-x))``."""
    with np.errstate(over="ignore"):  # exp(-x) may become infinite: silu is then 0, as it should be
        out: Array = x / (1 + np.exp(-x))
    return out


def gelu_tanh(x: Array) -> Array:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))``."""
    root = x.dtype.type(math.sqrt(2 / math.pi))
    out: Array = x / 2 * (1 + np.tanh(root * (x + x.dtype.type(0.044715) * x * x * x)))
    return out


_ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {"silu": silu, "gelu_tanh": gelu_tanh}


def route(logits: Array, bias: Array | None, op: Route) -> Array:
    """The experts of each row of ``logits`` ``[rows, experts]`` and their weights, as ``op`` says, in float32."""
    x = logits.astype(np.float32)
    if op.scoring == "softmax":
        scores = np.exp(x - x.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
    else:
        with np.errstate(over="ignore"):  # exp(-x) may become infinite: the score is then 0, as it should be
            scores = 1 / (1 + np.exp(-x))
    choice = scores if bias is None else scores + bias.astype(np.float32)
    if op.groups > 1:
        grouped = choice.reshape(len(x), op.groups, -1)
        best = _largest(np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1), op.top_groups)
        kept = np.zeros(grouped.shape[:2], bool)
        np.put_along_axis(kept, best, values=True, axis=-1)
        choice = np.where(kept[..., None], grouped, -np.inf).reshape(x.shape)
    experts = _largest(choice, op.top_k)
    weights = np.take_along_axis(scores, experts, axis=-1)
    if op.normalise:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + np.float32(op.epsilon))
    return np.concatenate([experts.astype(np.float32), weights * np.float32(op.factor)], axis=-1)


def _largest(values: Array, count: int) -> Array:
    """Positions of the ``count`` largest along the last axis, by falling value; of equal ones the lower is first."""
    return np.argsort(-values, axis=-1, kind="stable")[..., :count]
