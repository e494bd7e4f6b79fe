"""Codebooks with outliers: the formats ``codebook4`` and ``codebook3``, which only Trimaran reads.

Source of the method: Kim et al., "SqueezeLLM: Dense-and-Sparse Quantization" (2023): a few levels for each output, by
k-means in which a weight counts by what its error does to the model, and the largest weights apart. There this is the
diagonal of the Fisher information, from gradients. Here it is what the error costs in the outputs of the matrix, over
calibration text, after the output's other weights made up for it (GPTQ): no backward pass, and all outputs count alike.
Without text all weights count alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import ConfigError
from trimaran.base.formats import GROUP
from trimaran.compress.recipe import CompensatingRecipe, Output, Piece
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant.codebook import quantise_apart
from trimaran.quant.compensated import Factor, Places
from trimaran.quant.compensated_levels import quantise_together
from trimaran.quant.integers import Integers
from trimaran.quant.method import CODEBOOK
from trimaran.quant.squeezed import FORMATS, Squeezed, squeeze, squeezed_tensors
from trimaran.quant.stored import Stored

OUTLIERS = 0.45  # percent
MOST_OUTLIERS = 10.0  # percent: each takes 32 bits


@dataclass(frozen=True)
class Codebook(CompensatingRecipe):
    """Codes of ``bits`` for the levels of a row; ``outliers`` percent of its weights are apart."""

    bits: int
    outliers: float = OUTLIERS
    rows = 1

    def __post_init__(self) -> None:
        if not 0 <= self.outliers <= MOST_OUTLIERS:
            raise ConfigError(f"{self.outliers} % of weights as outliers: choose 0 to {MOST_OUTLIERS:g}")

    def outputs(self, module: str, rows: int, cols: int) -> list[Output]:
        tensors = squeezed_tensors(rows, cols, self.bits, self._count(cols))
        return [Output(f"{module}.{leaf}", fmt, shape) for leaf, (fmt, shape) in tensors.items()]

    def constants(self, rows: int, cols: int) -> list[npt.NDArray[Any]]:  # noqa: ARG002, as in the base class
        return []

    def encode(self, values: Float32) -> Piece:
        return _piece(quantise_apart("weights", values, FORMATS[self.bits], self._count(values.shape[1])), values)

    def order(self, moments: Float32) -> Places:
        return np.argsort(-np.diagonal(moments), kind="stable")

    def encode_together(self, values: Float32, factor: Factor) -> Piece:
        count = self._count(values.shape[1])
        return _piece(quantise_together("weights", values, FORMATS[self.bits], count, factor), values)

    def fits(self, cols: int) -> bool:
        return cols % GROUP == 0

    def already(self, stored: Stored) -> bool:
        return isinstance(stored, Squeezed | Integers) and stored.bits <= self.bits

    def config(self, ignored: Sequence[str]) -> dict[str, Any]:
        return {"quant_method": CODEBOOK, "bits": self.bits, "modules_to_not_convert": list(ignored)}

    def _count(self, cols: int) -> int:
        """Outliers of a row."""
        return round(self.outliers / 100 * cols)


def _piece(weight: Weight, values: Float32) -> Piece:
    rounded = dequantise(weight)
    error = float(np.square(rounded - values).sum(dtype=np.float64))
    return Piece(tuple(squeeze(weight)), rounded, error, error)
