"""Rows of weights, in any format: taken, reordered, stacked. Groups lie within a row, so no number changes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.kernels.weights import Outliers, Weight


def take_rows(weight: Weight, rows: slice | npt.NDArray[np.intp]) -> Weight:
    """The rows that ``rows`` picks, in its order; of a vector, the values. A slice copies no array of numbers."""
    parts: dict[str, Any] = {field: None if array is None else array[rows] for field, array in _arrays(weight).items()}
    outliers = None if weight.outliers is None else _take_outliers(weight.outliers, rows)
    return replace(weight, shape=(len(parts["data"]), *weight.shape[1:]), **parts, outliers=outliers)


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
    arrays: dict[str, Any] = {
        field: None if array is None else np.concatenate([_arrays(part)[field] for part in parts])
        for field, array in _arrays(first).items()
    }
    return Weight(name, first.fmt, shape, **arrays, outliers=_stack_outliers(parts))


def in_pieces(name: str, shape: tuple[int, ...], make: Callable[[slice], Weight], multiple: int = 1) -> Weight:
    """Makes a matrix some rows at a time, so that no intermediate array is large; pieces are all in one format.

    Every piece but the last has a multiple of ``multiple`` rows.
    """
    step = max(1, _PIECE // max(1, shape[1] * multiple)) * multiple
    first = make(slice(0, step))
    if shape[0] <= step:
        return replace(first, name=name)
    arrays = {field: _grown(array, shape[0]) for field, array in _arrays(first).items()}
    outliers = [first]
    for at in range(step, shape[0], step):
        piece = make(slice(at, at + step))
        assert piece.fmt is first.fmt, name
        for field, values in _arrays(piece).items():
            if values is not None:
                arrays[field][at : at + step] = values
        outliers.append(piece)
    whole = (shape[0], *first.shape[1:])
    return Weight(name, first.fmt, whole, **arrays, outliers=_stack_outliers(outliers))


def _arrays(weight: Weight) -> dict[str, Any]:
    """The arrays with an entry a row, by field."""
    return {field: getattr(weight, field) for field in ("data", "scale", "minimum", "codebook")}


def _grown(array: Any, rows: int) -> Any:
    """Room for ``rows`` rows, of which ``array`` fills the first."""
    if array is None:
        return None
    whole = np.empty((rows, *array.shape[1:]), array.dtype)
    whole[: len(array)] = array
    return whole


_PIECE = 1 << 20  # values


def _take_outliers(outliers: Outliers, rows: slice | npt.NDArray[np.intp]) -> Outliers:
    begins, ends = outliers.starts[:-1][rows], outliers.starts[1:][rows]
    starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(ends - begins, dtype=np.int32)])
    places = np.arange(starts[-1]) + np.repeat(begins - starts[:-1], ends - begins)
    return Outliers(starts, outliers.columns[places], outliers.values[places])


def _stack_outliers(parts: Sequence[Weight]) -> Outliers | None:
    if all(part.outliers is None for part in parts):
        return None
    lists = [part.outliers or _none(part.shape[0]) for part in parts]
    counts = np.concatenate([np.diff(each.starts) for each in lists])
    starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    columns = np.concatenate([each.columns for each in lists])
    return Outliers(starts, columns, np.concatenate([each.values for each in lists]))


def _none(rows: int) -> Outliers:
    return Outliers(np.zeros(rows + 1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float16))
