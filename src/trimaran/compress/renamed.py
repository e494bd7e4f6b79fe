"""The tensors of a GGUF file under the names, in the row order and with the norms of Hugging Face's layout.

Both layouts say of each weight of the program which rows of which tensors it is (``models/names.py``): a tensor of one
is put together from the other's by way of the program.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.checkpoint import Checkpoint
from trimaran.checkpoint.tensors import StorageFormat
from trimaran.kernels.program import Program
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.models.config import ModelConfig
from trimaran.models.names import Part, weight_parts
from trimaran.quant.logical import LogicalTensor, logical_tensors
from trimaran.quant.stored import Plain, Stored

_FLOATS = (StorageFormat.F32, StorageFormat.F16, StorageFormat.BF16)


@dataclass(frozen=True)
class Renamed(Stored):
    """``order`` names the source's row for each of the tensor's; of a vector, the source's value."""

    source: Plain
    order: npt.NDArray[np.intp]
    less: np.float32

    def values(self, rows: slice) -> Float32:
        if len(self.shape) == 1:
            return self.source.values(slice(None)).ravel()[self.order] - self.less
        order = self.order[rows]
        first = int(order.min())
        return self.source.values(slice(first, int(order.max()) + 1))[order - first]

    def grid(self) -> WeightFormat | None:
        return None

    def on_grid(self) -> Weight:
        raise AssertionError(f"{self.name} is read by its values alone")

    @property
    def held(self) -> StorageFormat:
        """What it is written as where it stays: its own floats, bf16 for all else."""
        fmt = self.source.tensor.fmt
        return fmt if fmt in _FLOATS else StorageFormat.BF16

    @property
    def bits(self) -> int:
        """Of a code of the source, its scales not counted."""
        return _BITS.get(self.source.tensor.fmt, 8 * self.source.tensor.fmt.block_bytes)


_BITS = {StorageFormat.Q2_K: 2, StorageFormat.Q3_K: 3} | dict.fromkeys(
    (
        StorageFormat.Q4_0,
        StorageFormat.Q4_1,
        StorageFormat.Q4_K,
        StorageFormat.IQ4_NL,
        StorageFormat.IQ4_XS,
        StorageFormat.MXFP4,
    ),
    4,
)


def renamed_tensors(checkpoint: Checkpoint, cfg: ModelConfig, program: Program) -> list[LogicalTensor]:
    """All tensors that ``program`` reads, in its order; what else the file holds is left out.

    Raises ``CheckpointError`` on tensors that are missing or misshapen, ``UnsupportedError`` on latent attention, whose
    ``kv_b_proj`` such files hold as two tensors.
    """
    if cfg.latent is not None:
        raise UnsupportedError(
            f"GGUF files of the {cfg.family} family cannot be compressed: give the safetensors model"
        )
    stored = {tensor.name: tensor for tensor in logical_tensors(checkpoint)}
    found = []
    for name, spec in program.weights.items():
        if cfg.tied and name == "lm_head":
            continue
        wanted = weight_parts(name, spec.shape[0], cfg, "safetensors")
        for part, held in zip(wanted, weight_parts(name, spec.shape[0], cfg, "gguf"), strict=True):
            if held.tensor not in stored:
                raise CheckpointError(f"the model has no tensor {held.tensor}, which the {cfg.family} family needs")
            found.append(_renamed(stored[held.tensor], held, part, spec.shape[1:]))
    return found


def _renamed(tensor: LogicalTensor, held: Part, part: Part, columns: tuple[int, ...]) -> LogicalTensor:
    def read() -> Renamed:
        source = tensor.open()
        assert isinstance(source, Plain), source
        if source.shape != held.shape(columns):
            raise CheckpointError(
                f"tensor {held.tensor} has shape {list(source.shape)}; the model's sizes ask for"
                f" {list(held.shape(columns))}"
            )
        shape = part.shape(columns)
        order = np.empty(shape[0], np.intp)
        order[_places(part)] = _places(held)
        return Renamed(part.tensor, shape, source, order, np.float32(part.less_one))

    return LogicalTensor(part.tensor, read)


def _places(part: Part) -> npt.NDArray[np.intp]:
    order = part.row_order()
    return np.arange(order.start, order.stop) if isinstance(order, slice) else order
