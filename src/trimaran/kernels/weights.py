"""Weights as executors receive them: one canonical array form per format, independent of any packed layout."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import GROUP, WeightFormat


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
    ========  ==========================================================================================

    Arrays may be views of a memory-mapped file; an executor packs what it needs and keeps no reference.
    """

    name: str
    fmt: WeightFormat
    shape: tuple[int, ...]
    data: npt.NDArray[np.generic]
    scale: npt.NDArray[np.float16] | None = None
    minimum: npt.NDArray[np.float16] | None = None


def least_bytes(weight: Weight, *, head: bool) -> int:
    """Bytes that a step must read of a matrix, scales included.

    Of an int8 matrix that makes logits (``head``) the high halves of its bytes are enough for a greedy choice.
    """
    rows, cols = weight.shape
    low = rows * cols // 2 if head and weight.fmt is WeightFormat.INT8 else 0
    return rows * cols // GROUP * weight.fmt.group_bytes - low


def touched_experts(experts: int, top_k: int, rows: int) -> float:
    """How many of ``experts`` some of ``rows`` rows are expected to go to, where each goes to any ``top_k`` alike."""
    return experts * (1 - (1 - top_k / experts) ** rows)
