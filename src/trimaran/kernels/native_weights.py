"""Weights as the compiled core takes them."""

import numpy as np
import numpy.typing as npt

from trimaran import _native
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


def _bits(values: npt.NDArray[np.float16] | None, rows: int) -> npt.NDArray[np.uint16] | None:
    return None if values is None else np.ascontiguousarray(values).view(np.uint16).reshape(rows, -1)
