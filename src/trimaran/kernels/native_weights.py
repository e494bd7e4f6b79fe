"""Weights as the compiled core takes them."""

import numpy as np
import numpy.typing as npt

from trimaran.kernels.native_core import _native
from trimaran.kernels.weights import Weight


def canonical_arrays(weight: Weight, count: int = 1) -> _native.Weight:
    """The core's view of ``count`` matrices, one under the other."""
    rows, cols = weight.shape
    halves = weight.scale is not None and weight.scale.dtype == np.float16
    sparse = weight.outliers
    return _native.Weight(
        fmt=weight.fmt,
        count=count,
        n=rows // count,
        k=cols,
        data=np.ascontiguousarray(weight.data).view(np.uint8).reshape(rows, -1),
        scale=_bits(weight.scale, rows) if halves else None,
        minimum=_bits(weight.minimum, rows),
        block_scale=None if weight.scale is None or halves else np.ascontiguousarray(weight.scale),
        codebook=None if weight.codebook is None else np.ascontiguousarray(weight.codebook),
        outlier_starts=None if sparse is None else np.ascontiguousarray(sparse.starts),
        outlier_columns=None if sparse is None else np.ascontiguousarray(sparse.columns),
        outlier_values=None if sparse is None else np.ascontiguousarray(sparse.values).view(np.uint16),
    )


def packed_matrices(weight: Weight, count: int, outlier_rows: int | None) -> _native.Weight:
    """As ``canonical_arrays``, of matrices whose numbers lie packed in the core's memory already."""
    rows, cols = weight.shape
    return _native.Weight.packed(fmt=weight.fmt, count=count, n=rows // count, k=cols, outlier_rows=outlier_rows)


def packed_bytes(weight: Weight, count: int, *, paired: bool, head: bool) -> int:
    """Bytes that ``count`` matrices, one under the other, or a vector take of the core's weight memory."""
    if len(weight.shape) == 1:
        return _native.matrix_bytes("fp32", weight.shape[0], 1, paired, False)  # fp32 whatever it came in
    rows, inputs = weight.shape
    size = count * _native.matrix_bytes(weight.fmt, rows // count, inputs, paired, head)
    if weight.outliers is not None:
        size += _native.outlier_bytes(count, rows // count, paired, weight.outliers.starts)
    return size


def _bits(values: npt.NDArray[np.float16] | None, rows: int) -> npt.NDArray[np.uint16] | None:
    return None if values is None else np.ascontiguousarray(values).view(np.uint16).reshape(rows, -1)
