"""compressed-tensors' ``pack-quantized``: ``weight_packed``, ``weight_scale``, ``weight_shape``; ``weight_zero_point``
where there are zero points, ``weight_g_idx`` where inputs were grouped by importance.

Source: ``compressed_tensors.compressors.pack_quantized`` (0.20). Codes are unsigned; the number 0 has the middle one.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trimaran.base.errors import UnsupportedError
from trimaran.checkpoint.tensors import StorageFormat
from trimaran.kernels.step import Float32
from trimaran.quant.integers import Integers, RowWords
from trimaran.quant.parts import Parts
from trimaran.quant.symmetric import Rounded
from trimaran.quant.words import Words, pack_nibble_words, unpack

LEAVES = frozenset({"weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"})


def read_packed(parts: Parts) -> Integers:
    """The matrix; raises ``CheckpointError`` where its tensors contradict, ``UnsupportedError`` on other widths."""
    words = parts.matrix("weight_packed", (StorageFormat.I32,))
    rows, cols = _shape(parts)
    scale = parts.group_scales("weight_scale", rows, cols)
    groups = scale.shape[1]
    bits = next((bits for bits in _WIDTHS if words.shape == (rows, math.ceil(cols * bits / 32))), 0)
    if bits == 0:
        raise parts.wrong("weight_packed", f"has shape {list(words.shape)}, which no width gives of {[rows, cols]}")
    if bits not in (4, 8):
        raise UnsupportedError(f"{parts.name} has weights of {bits} bits; of pack-quantized ones, 4 and 8 are readable")
    order = parts.column_groups("weight_g_idx", cols, groups) if "weight_g_idx" in parts else None
    if order is None and cols % groups:
        raise parts.wrong("weight_scale", f"has {groups} scales a row, which do not divide {cols} inputs")
    zeros = _zeros(parts, bits, rows, groups) if "weight_zero_point" in parts else None
    return Integers(parts.name, (rows, cols), bits, RowWords(words, bits, cols), scale, zeros, order)


def pack(rounded: Rounded) -> tuple[Words, npt.NDArray[Any]]:
    """Words ``[rows, cols / 8]`` and scales ``[rows, groups]`` in bf16, of rows whose scales bf16 holds."""
    codes = (rounded.codes + 8).astype(np.uint8).reshape(len(rounded.codes), -1)
    return pack_nibble_words(codes), rounded.scale.astype(ml_dtypes.bfloat16)


def to_bf16(numbers: Float32) -> Float32:
    """The nearest scales that the file can hold."""
    return numbers.astype(ml_dtypes.bfloat16).astype(np.float32)


_WIDTHS = (4, 8, 1, 2, 3, 5, 6, 7)  # for a few inputs several take as many words: the readable ones go first


def _shape(parts: Parts) -> tuple[int, int]:
    shape = parts.array("weight_shape", (StorageFormat.I32, StorageFormat.I64))
    if shape.shape != (2,) or shape.min() < 1:
        raise parts.wrong("weight_shape", f"holds {shape.tolist()!r:.60}, which are no rows and columns")
    return int(shape[0]), int(shape[1])


def _zeros(parts: Parts, bits: int, rows: int, groups: int) -> npt.NDArray[np.uint8]:
    """They are packed along the rows."""
    words = parts.matrix("weight_zero_point", (StorageFormat.I32,), (math.ceil(rows * bits / 32), groups))
    return unpack(words.T, bits, rows).T
