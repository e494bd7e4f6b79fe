"""Rows of weights, in any format: taken, reordered, stacked. Groups lie within a row, so no number changes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.kernels.weights import Weight

Half = npt.NDArray[np.float16]


def take_rows(weight: Weight, rows: slice | npt.NDArray[np.intp]) -> Weight:
    """The rows that ``rows`` picks, in its order; of a vector, the values. A slice copies nothing."""
    data = weight.data[rows]
    scale = None if weight.scale is None else weight.scale[rows]
    minimum = None if weight.minimum is None else weight.minimum[rows]
    return replace(weight, shape=(len(data), *weight.shape[1:]), data=data, scale=scale, minimum=minimum)


def transpose_heads(weight: Weight, heads: int) -> Weight:
    """A matrix that is ``heads`` matrices one under the other, each of them transposed; not for integers, whose scales
    belong to rows."""
    assert not weight.fmt.quantised, weight.name
    rows, cols = weight.shape
    data = weight.data.reshape(heads, rows // heads, cols).swapaxes(1, 2).reshape(heads * cols, rows // heads)
    return replace(weight, shape=data.shape, data=np.ascontiguousarray(data))


def stack_rows(name: str, parts: Sequence[Weight]) -> Weight:
    """``parts``, all in one format and as wide as each other, one under the other."""
    first = parts[0]
    assert all((part.fmt, part.shape[1:]) == (first.fmt, first.shape[1:]) for part in parts), name
    if len(parts) == 1:
        return replace(first, name=name)
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    data = np.concatenate([part.data for part in parts])
    return Weight(
        name, first.fmt, shape, data, _halves(part.scale for part in parts), _halves(part.minimum for part in parts)
    )


def in_pieces(name: str, shape: tuple[int, ...], make: Callable[[slice], Weight]) -> Weight:
    """Makes a matrix a few rows at a time, so that no intermediate array is large; pieces are all in one format."""
    step = max(1, _PIECE // max(1, shape[1]))
    first = make(slice(0, step))
    if shape[0] <= step:
        return replace(first, name=name)
    data, scale, minimum = (_grown(array, shape[0]) for array in (first.data, first.scale, first.minimum))
    whole = Weight(name, first.fmt, (shape[0], *first.shape[1:]), data, scale, minimum)
    for at in range(step, shape[0], step):
        piece = make(slice(at, at + step))
        assert piece.fmt is first.fmt, name
        for to, values in ((data, piece.data), (scale, piece.scale), (minimum, piece.minimum)):
            if to is not None:
                to[at : at + step] = values
    return whole


def _grown(array: Any, rows: int) -> Any:
    """Room for ``rows`` rows, of which ``array`` fills the first."""
    if array is None:
        return None
    whole = np.empty((rows, *array.shape[1:]), array.dtype)
    whole[: len(array)] = array
    return whole


_PIECE = 1 << 20  # values


def _halves(arrays: Iterable[Half | None]) -> Half | None:
    present = [array for array in arrays if array is not None]
    return np.concatenate(present) if present else None
