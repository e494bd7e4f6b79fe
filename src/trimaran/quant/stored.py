"""What a model's tensor is to those who load it, however a checkpoint stores it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import prod

from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import GROUP, WeightFormat
from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant import gguf_blocks, gguf_grids
from trimaran.quant.rows import in_pieces


@dataclass(frozen=True)
class Stored(ABC):
    """A tensor that one tensor of the checkpoint holds, or several together (codes, scales, zero points).

    ``shape`` is in torch order. The tensor is read as a matrix ``[rows, cols]``, whose rows run over all dimensions of
    ``shape`` but the last.
    """

    name: str
    shape: tuple[int, ...]

    @abstractmethod
    def values(self, rows: slice) -> Float32:
        """Those rows as float32, as the format defines them."""

    @abstractmethod
    def grid(self) -> WeightFormat | None:
        """The format that holds the tensor's own grid, or ``None`` where none does; may read the scales."""

    @abstractmethod
    def on_grid(self) -> Weight:
        """The matrix in the format that ``grid`` names, which must not be ``None``."""

    def default(self) -> WeightFormat:
        """The format it is held in where none is asked for: that of its grid, or ``fallback``."""
        return self.grid() or self.fallback

    @property
    def fallback(self) -> WeightFormat:
        """What holds the tensor by default where no format has its grid."""
        return WeightFormat.BF16 if self.shape[-1] % GROUP else WeightFormat.INT8


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor of ``shape``, read as a matrix."""
    return prod(shape[:-1]), shape[-1] if shape else 1


@dataclass(frozen=True)
class Plain(Stored):
    """One tensor that is complete by itself: floats, or GGUF's blocks."""

    tensor: CheckpointTensor

    def values(self, rows: slice) -> Float32:
        return gguf_blocks.dequantise(self._matrix(rows))

    def grid(self) -> WeightFormat | None:
        return gguf_grids.own_grid(self.tensor)

    def on_grid(self) -> Weight:
        if gguf_grids.is_view(self.tensor.fmt):
            return gguf_grids.on_grid(self._matrix(slice(None)))
        return in_pieces(self.name, matrix_shape(self.shape), lambda rows: gguf_grids.on_grid(self._matrix(rows)))

    @property
    def fallback(self) -> WeightFormat:
        return WeightFormat.BF16 if self.tensor.fmt is StorageFormat.F16 else super().fallback

    def _matrix(self, rows: slice) -> CheckpointTensor:
        if self.tensor.fmt not in gguf_blocks.READABLE:
            raise UnsupportedError(f"tensor {self.name} holds {self.tensor.fmt}, which stands for no weights by itself")
        data = self.tensor.data[rows]
        return replace(self.tensor, shape=(len(data), matrix_shape(self.shape)[1]), data=data)


def plain(tensor: CheckpointTensor) -> Plain:
    """A tensor that stands for itself."""
    return Plain(tensor.name, tensor.shape, tensor)
