"""Weights as executors receive them: one canonical array form per format, independent of any packed layout."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import OUTLIER_BYTES, WeightFormat


@dataclass(frozen=True)
class Outliers:
    """Numbers that are added to single weights of a matrix: those of row r are ``starts[r]:starts[r + 1]``, in strictly
    ascending ``columns``."""

    starts: npt.NDArray[np.int32]  # [rows + 1], from 0 on
    columns: npt.NDArray[np.int32]
    values: npt.NDArray[np.float16]

    @property
    def nbytes(self) -> int:
        return self.starts.nbytes + self.columns.nbytes + self.values.nbytes


@dataclass(frozen=True)
class Weight:
    """A matrix ``[rows, cols]`` (or a vector ``[cols]`` as fp32) in ``fmt``.

    ========  ==========================================================================================
    fp32      ``data`` float32 ``[rows, cols]``
    bf16      ``data`` uint16 ``[rows, cols]`` (the upper half of the float32)
    int8      ``data`` int8 ``[rows, cols]``, ``scale`` float16 ``[rows, cols / 32]``
    int4      ``data`` uint8 ``[rows, cols / 2]``, ``scale`` as above; in each group of 32, byte ``j`` (of 16) holds
              value ``j`` in the low and value ``j + 16`` in the high nibble (GGUF Q4_0 order)
    int4z     as int4, and ``minimum`` float16 ``[rows, cols / 32]``
    fp8       ``data`` uint8 (e4m3) ``[rows, cols]``, ``scale`` float32 ``[rows, ceil(cols / 128)]``, at most 128 each:
              rows of a file's block of 128 x 128 repeat its scale, so that rows may be taken and stacked
    codebook  ``data`` as of int4, codes 0 to 15 (codebook3: 0 to 7), ``codebook`` int8 ``[rows, 16]`` (codebook3:
              ``[rows, 8]``), ``scale`` float16 ``[rows]``, ``outliers`` or ``None``
    ========  ==========================================================================================

    Arrays may be views of a memory-mapped file; an executor packs what it needs and keeps no reference.
    """

    name: str
    fmt: WeightFormat
    shape: tuple[int, ...]
    data: npt.NDArray[np.generic]
    scale: npt.NDArray[Any] | None = None
    minimum: npt.NDArray[np.float16] | None = None
    codebook: npt.NDArray[np.int8] | None = None
    outliers: Outliers | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = (self.data, self.scale, self.minimum, self.codebook)
        sparse = 0 if self.outliers is None else self.outliers.nbytes
        return sparse + sum(array.nbytes for array in arrays if array is not None)


ReadWeight = Callable[[str], Weight]  # a weight with its numbers, by its name, for as long as its caller holds it
NO_NUMBERS = np.zeros(0, np.uint8)  # the data of weights of which format and shape alone are known


def least_bytes(weight: Weight, *, head: bool) -> int:
    """Bytes that a step must read of a matrix, scales included.

    Of an int8 matrix that makes logits (``head``) the high halves of its bytes are enough for a greedy choice.
    """
    rows, cols = weight.shape
    low = rows * cols // 2 if head and weight.fmt is WeightFormat.INT8 else 0
    sparse = 0 if weight.outliers is None else len(weight.outliers.values) * OUTLIER_BYTES
    return rows * weight.fmt.row_bytes(cols) + sparse - low


def touched_experts(experts: int, top_k: int, rows: int) -> float:
    """How many of ``experts`` some of ``rows`` rows are expected to go to, where each goes to any ``top_k`` alike."""
    return experts * (1 - (1 - top_k / experts) ** rows)


def describe_formats(weights: Mapping[str, Weight]) -> str:
    """The formats of the matrices, the most bytes first, such as ``int4z+int8``."""
    sizes: dict[str, int] = {}
    for weight in weights.values():
        if len(weight.shape) == 2:
            rows, cols = weight.shape
            sizes[weight.fmt] = sizes.get(weight.fmt, 0) + rows * weight.fmt.row_bytes(cols)
    return "+".join(sorted(sizes, key=lambda fmt: -sizes[fmt]))
