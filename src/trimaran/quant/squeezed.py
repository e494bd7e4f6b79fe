"""The tensors that ``trimaran compress`` writes of a matrix with codebooks and outliers; no other engine reads them.

========================== ======== ==================== ==============================================================
``weight_codes``           U8       [rows, cols * b / 8] numbers of levels, of b = 4 or 3 bits: 8 take b bytes, the
                                                         first in the lowest bits
``weight_codebook``        I8       [rows, 2^b]          a row's levels, -127 to 127, before the scale
``weight_scale``           F16      [rows, 1]            what they are multiplied with
``weight_outlier_columns`` U16, I32 [rows, k]            where numbers are added, ascending; these two may be missing
``weight_outlier_values``  F16      [rows, k]            what is added there
========================== ======== ==================== ==============================================================

Every row has as many outliers, so that rows are found without an index, and threads have equal work.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import GROUP, WeightFormat
from trimaran.checkpoint.tensors import StorageFormat
from trimaran.kernels.dequantise import dequantise, pack_nibbles, unpack_nibbles
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Outliers, Weight
from trimaran.quant.parts import Parts
from trimaran.quant.rows import in_pieces
from trimaran.quant.stored import Stored

FORMATS = {4: WeightFormat.CODEBOOK4, 3: WeightFormat.CODEBOOK3}  # by the bits of a code
LEAVES = frozenset(
    {"weight_codes", "weight_codebook", "weight_scale", "weight_outlier_columns", "weight_outlier_values"}
)

Codes = npt.NDArray[np.uint8]
Half = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Squeezed(Stored):
    """The tensors as they lie in the file, and the bits of a code."""

    bits: int
    codes: Codes
    codebook: npt.NDArray[np.int8]
    scale: Half
    columns: npt.NDArray[Any] | None
    added: Half | None

    def values(self, rows: slice) -> Float32:
        return dequantise(self._piece(rows))

    def grid(self) -> WeightFormat:
        return FORMATS[self.bits]

    def on_grid(self) -> Weight:
        return in_pieces(self.name, (self.shape[0], self.shape[1]), self._piece)

    def _piece(self, rows: slice) -> Weight:
        codes = unpack_codes(self.codes[rows], self.bits)
        outliers = None
        if self.columns is not None and self.added is not None:
            columns = self.columns[rows].astype(np.int32)
            starts = np.arange(len(columns) + 1, dtype=np.int32) * np.int32(columns.shape[1])
            outliers = Outliers(starts, columns.ravel(), self.added[rows].ravel())
        return Weight(
            self.name,
            self.grid(),
            codes.shape,
            pack_nibbles(codes),
            np.ascontiguousarray(self.scale[rows, 0]),
            codebook=self.codebook[rows],
            outliers=outliers,
        )


def read_squeezed(parts: Parts) -> Squeezed:
    """The matrix; raises ``CheckpointError`` where its tensors contradict each other or hold what they cannot."""
    codebook = parts.matrix("weight_codebook", (StorageFormat.I8,))
    rows, levels = codebook.shape
    bits = {1 << bits: bits for bits in FORMATS}.get(levels)
    if bits is None:
        raise parts.wrong("weight_codebook", f"has {levels} levels a row; 16 and 8 are readable")
    if codebook.min() < -127:
        raise parts.wrong("weight_codebook", "holds -128, but levels are -127 to 127")
    codes = parts.matrix("weight_codes", (StorageFormat.U8,))
    groups, rest = divmod(codes.shape[1] * 8, bits * GROUP)
    if len(codes) != rows or rest:
        shape = list(codes.shape)
        raise parts.wrong("weight_codes", f"has shape {shape}, which are no codes of {bits} bits in {rows} rows")
    cols = groups * GROUP
    scale = parts.matrix("weight_scale", (StorageFormat.F16,), (rows, 1))
    _check_finite(parts, "weight_scale", scale)
    columns, added = _outliers(parts, rows, cols)
    return Squeezed(parts.name, (rows, cols), bits, codes, codebook, scale, columns, added)


def _outliers(parts: Parts, rows: int, cols: int) -> tuple[npt.NDArray[Any] | None, Half | None]:
    if "weight_outlier_columns" not in parts and "weight_outlier_values" not in parts:
        return None, None
    columns = parts.matrix("weight_outlier_columns", (StorageFormat.U16, StorageFormat.I32))
    if len(columns) != rows:
        raise parts.wrong("weight_outlier_columns", f"has {len(columns)} rows; the tensors beside it ask for {rows}")
    wide = columns.astype(np.int64)
    if wide.min() < 0 or wide.max() >= cols or (np.diff(wide, axis=1) <= 0).any():
        raise parts.wrong("weight_outlier_columns", f"does not hold ascending columns below {cols} in every row")
    added = parts.matrix("weight_outlier_values", (StorageFormat.F16,), columns.shape)
    _check_finite(parts, "weight_outlier_values", added)
    return columns, added


def _check_finite(parts: Parts, leaf: str, numbers: Half) -> None:
    if not np.isfinite(numbers).all():
        raise parts.wrong(leaf, "holds numbers that are not finite")


def squeezed_tensors(
    rows: int, cols: int, bits: int, outliers: int
) -> dict[str, tuple[StorageFormat, tuple[int, int]]]:
    """The tensors of a matrix ``[rows, cols]`` with so many ``outliers`` in every row, in the order of ``squeeze``."""
    tensors = {
        "weight_codes": (StorageFormat.U8, (rows, cols * bits // 8)),
        "weight_codebook": (StorageFormat.I8, (rows, 1 << bits)),
        "weight_scale": (StorageFormat.F16, (rows, 1)),
    }
    if outliers:
        tensors["weight_outlier_columns"] = (_columns_format(cols), (rows, outliers))
        tensors["weight_outlier_values"] = (StorageFormat.F16, (rows, outliers))
    return tensors


def squeeze(weight: Weight) -> list[npt.NDArray[Any]]:
    """The arrays of ``squeezed_tensors`` for a ``weight`` with as many outliers in each row."""
    assert weight.scale is not None, weight.name
    assert weight.codebook is not None, weight.name
    rows, cols = weight.shape
    codes = pack_codes(unpack_nibbles(weight.data.view(np.uint8)), weight.fmt.levels.bit_length() - 1)
    arrays: list[npt.NDArray[Any]] = [codes, weight.codebook, weight.scale[:, None]]
    if weight.outliers is not None:
        columns = weight.outliers.columns.astype(_columns_format(cols).dtype)
        arrays += [columns.reshape(rows, -1), weight.outliers.values.reshape(rows, -1)]
    return arrays


def pack_codes(codes: Codes, bits: int) -> Codes:
    """``[rows, cols]``, ``cols`` a multiple of 8, to bytes ``[rows, cols * bits / 8]``."""
    eights = codes.reshape(len(codes), -1, 8).astype(np.uint32)
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(eights << _places(bits), axis=-1)
    octets = words.astype("<u4", copy=False).view(np.uint8).reshape(*words.shape, 4)
    return octets[..., :bits].reshape(len(codes), -1)


def unpack_codes(octets: Codes, bits: int) -> Codes:
    """The inverse of ``pack_codes``."""
    packed = octets.reshape(len(octets), -1, bits)
    padded = np.zeros((*packed.shape[:2], 4), np.uint8)
    padded[..., :bits] = packed
    eights = padded.view("<u4") >> _places(bits) & np.uint32((1 << bits) - 1)
    return eights.astype(np.uint8).reshape(len(octets), -1)


def _places(bits: int) -> npt.NDArray[np.uint32]:
    return np.arange(8, dtype=np.uint32) * np.uint32(bits)


def _columns_format(cols: int) -> StorageFormat:
    return StorageFormat.U16 if cols <= 1 << 16 else StorageFormat.I32
