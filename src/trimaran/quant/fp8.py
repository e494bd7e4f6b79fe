"""Matrices of 8-bit floats (e4m3 or e5m2) with scales: ``scale * value``, computed in float32."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.formats import FP8_BLOCK, WeightFormat
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant.rows import in_pieces
from trimaran.quant.stored import Stored

E4M3 = ml_dtypes.float8_e4m3fn
_LARGEST = 448  # of e4m3
_MOST_SCALE = 128  # kernels multiply scales by 2^120


@dataclass(frozen=True)
class Fp8(Stored):
    """``floats`` ``[rows, cols]``; ``scale`` holds one number a ``block`` (rows, columns), the last ones partial."""

    floats: npt.NDArray[Any]
    scale: npt.NDArray[Any]
    block: tuple[int, int]

    def values(self, rows: slice) -> Float32:
        table = np.arange(256, dtype=np.uint8).view(self.floats.dtype).astype(np.float32)
        values: Float32 = table.take(self.floats[rows].view(np.uint8))
        high, wide = self.block
        scale = self.scale[np.arange(self.shape[0])[rows] // high].astype(np.float32)
        with np.errstate(over="ignore"):  # an infinite weight is refused where it meets a format that has none
            values *= scale if scale.shape[1] == 1 else np.repeat(scale, wide, axis=1)[:, : self.shape[1]]
        return values

    def grid(self) -> WeightFormat | None:
        held = self.floats.dtype == E4M3 and (self.block[1] % FP8_BLOCK == 0 or self.scale.shape[1] == 1)
        return WeightFormat.FP8 if held and np.abs(self.scale.astype(np.float32)).max() <= _MOST_SCALE else None

    def on_grid(self) -> Weight:
        repeats = 1 if self.scale.shape[1] > 1 else -(-self.shape[1] // FP8_BLOCK)
        scale = np.repeat(self.scale.astype(np.float32), max(repeats, self.block[1] // FP8_BLOCK), axis=1)
        scale = scale[:, : -(-self.shape[1] // FP8_BLOCK)]

        def piece(rows: slice) -> Weight:
            codes = self.floats[rows].view(np.uint8)
            if ((codes & 0x7F) == 0x7F).any():
                raise CheckpointError(f"tensor {self.name} holds values that are no numbers")
            own = scale[np.arange(self.shape[0])[rows] // self.block[0]]
            return Weight(self.name, WeightFormat.FP8, codes.shape, codes, own)

        return in_pieces(self.name, self.shape, piece)

    def default(self) -> WeightFormat:
        """int8, which is quicker where many rows meet the matrix and hardly less exact (ARCHITECTURE.md, Formats)."""
        return self.fallback


def quantise(name: str, values: Float32) -> Weight:
    """``values`` ``[rows, cols]`` in blocks of 128 x 128, as ``block_rows`` makes them.

    Raises ``UnsupportedError`` where a number is not finite, or beyond 57344.
    """
    if not (np.abs(values) <= _LARGEST * _MOST_SCALE).all():
        raise UnsupportedError(f"{name} holds numbers too large for fp8, or not finite: hold it as bf16 or fp32")
    floats, scale = block_rows(values)
    scale = np.repeat(scale, FP8_BLOCK, axis=0)[: len(values)]
    return Weight(name, WeightFormat.FP8, values.shape, floats.view(np.uint8), scale)


def block_rows(values: Float32) -> tuple[npt.NDArray[Any], Float32]:
    """``values`` ``[rows, cols]``, finite, as e4m3 and float32 scales of 128 x 128 blocks, the last ones partial.

    ``rows`` is a multiple of 128 unless these are a matrix's last. The largest number of a block becomes 448.
    """
    rows, cols = values.shape
    high, wide = -(-rows // FP8_BLOCK), -(-cols // FP8_BLOCK)
    padded = np.zeros((high * FP8_BLOCK, wide * FP8_BLOCK), np.float32)
    padded[:rows, :cols] = values
    blocks = padded.reshape(high, FP8_BLOCK, wide, FP8_BLOCK)
    scale = np.abs(blocks).max(axis=(1, 3)) / np.float32(_LARGEST)
    step = scale[:, None, :, None]
    np.divide(blocks, step, out=blocks, where=step > 0)
    np.clip(blocks, -_LARGEST, _LARGEST, out=blocks)
    return padded[:rows, :cols].astype(E4M3), scale
