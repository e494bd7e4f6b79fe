"""Matrices of 8-bit floats (e4m3 or e5m2) with scales: ``scale * value``, computed in float32."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import WeightFormat
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant.stored import Stored


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
        return None

    def on_grid(self) -> Weight:
        raise AssertionError(f"{self.name}: no format has the grid of 8-bit floats")
