"""The formats that checkpoints are compressed to: their tensors, their rounding, their entry in ``config.json``."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import ConfigError
from trimaran.checkpoint.tensors import StorageFormat
from trimaran.kernels.step import Float32
from trimaran.quant import symmetric
from trimaran.quant.compensated import Factor, Places, compensate
from trimaran.quant.fp8 import Fp8, block_rows
from trimaran.quant.integers import Integers
from trimaran.quant.packed import pack, to_bf16
from trimaran.quant.stored import Stored

GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class Output:
    """A tensor of the new checkpoint. Of a compressed matrix, a row of it is made from ``per`` rows of the matrix."""

    name: str
    fmt: StorageFormat
    shape: tuple[int, ...]
    per: int = 1


@dataclass(frozen=True)
class Piece:
    """Some rows of a matrix: an array for each of the recipe's outputs that holds rows.

    ``values`` are what the arrays stand for, ``error`` is the sum of their squared errors and ``plain_error`` what
    rounding to nearest would have left.
    """

    arrays: tuple[npt.NDArray[Any], ...]
    values: Float32
    error: float
    plain_error: float


class Recipe(ABC):
    """A format. ``rows`` is what a piece must have a multiple of."""

    rows: int

    @abstractmethod
    def outputs(self, module: str, rows: int, cols: int) -> list[Output]:
        """The tensors that a matrix becomes: those that ``encode`` makes, in its order, then ``constants``."""

    @abstractmethod
    def constants(self, rows: int, cols: int) -> list[npt.NDArray[Any]]:
        """The small tensors beside them."""

    @abstractmethod
    def encode(self, values: Float32) -> Piece:
        """Finite rows, rounded."""

    @abstractmethod
    def fits(self, cols: int) -> bool:
        """True when rows of ``cols`` inputs can be held."""

    @abstractmethod
    def already(self, stored: Stored) -> bool:
        """True when the source has no more bits than this format."""

    @abstractmethod
    def config(self, ignored: Sequence[str]) -> dict[str, Any]:
        """``quantization_config``; ``ignored`` are the linear modules that stay."""


class CompensatingRecipe(Recipe):
    """A format that can make up for the rounding of some inputs' weights with those of others."""

    @abstractmethod
    def order(self, moments: Float32) -> Places:
        """The order to round inputs in, which have ``moments`` ``[inputs, inputs]``."""

    @abstractmethod
    def encode_together(self, values: Float32, factor: Factor) -> Piece:
        """Finite rows, rounded with compensation; ``plain_error`` is ``error``."""


@dataclass(frozen=True)
class Int4(CompensatingRecipe):
    """compressed-tensors' ``pack-quantized``, symmetric, in groups of ``group`` inputs with scales in bf16."""

    group: int = 32
    rows = 1

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ConfigError(f"groups of {self.group} weights: choose one of {', '.join(map(str, GROUPS))}")

    def outputs(self, module: str, rows: int, cols: int) -> list[Output]:
        return [
            Output(f"{module}.weight_packed", StorageFormat.I32, (rows, cols // 8)),
            Output(f"{module}.weight_scale", StorageFormat.BF16, (rows, cols // self.group)),
            Output(f"{module}.weight_shape", StorageFormat.I64, (2,)),
        ]

    def constants(self, rows: int, cols: int) -> list[npt.NDArray[Any]]:
        return [np.array([rows, cols], "<i8")]

    def encode(self, values: Float32) -> Piece:
        groups = values.reshape(len(values), -1, self.group)
        fitted = symmetric.fit(groups, to_bf16)
        return Piece(pack(fitted), fitted.values(), fitted.error, symmetric.nearest(groups, to_bf16).error)

    def order(self, moments: Float32) -> Places:
        return np.arange(len(moments))  # groups lie side by side

    def encode_together(self, values: Float32, factor: Factor) -> Piece:
        rounded = compensate(values, factor, self.group, to_bf16)
        return Piece(pack(rounded), rounded.values(), rounded.error, rounded.error)

    def fits(self, cols: int) -> bool:
        return cols % self.group == 0

    def already(self, stored: Stored) -> bool:
        return isinstance(stored, Integers) and stored.bits == 4

    def config(self, ignored: Sequence[str]) -> dict[str, Any]:
        weights = {
            "num_bits": 4,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": self.group,
            "dynamic": False,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": list(ignored),
        }


@dataclass(frozen=True)
class Fp8Blocks(Recipe):
    """e4m3 with a float32 scale for each block of 128 x 128, as DeepSeek publishes models."""

    rows = 128

    def outputs(self, module: str, rows: int, cols: int) -> list[Output]:
        blocks = (-(-rows // 128), -(-cols // 128))
        return [
            Output(f"{module}.weight", StorageFormat.F8_E4M3, (rows, cols)),
            Output(f"{module}.weight_scale_inv", StorageFormat.F32, blocks, per=128),
        ]

    def constants(self, rows: int, cols: int) -> list[npt.NDArray[Any]]:  # noqa: ARG002, as in the base class
        return []

    def encode(self, values: Float32) -> Piece:
        floats, scale = block_rows(values)
        wide = scale.repeat(128, axis=0)[: len(values)].repeat(128, axis=1)[:, : values.shape[1]]
        rounded = floats.astype(np.float32) * wide
        error = float(np.square(rounded - values).sum(dtype=np.float64))
        return Piece((floats, scale), rounded, error, error)

    def fits(self, cols: int) -> bool:
        return cols > 0

    def already(self, stored: Stored) -> bool:
        return isinstance(stored, Fp8)

    def config(self, ignored: Sequence[str]) -> dict[str, Any]:
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": list(ignored),
        }
