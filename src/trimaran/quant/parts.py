"""The tensors that make up one quantised matrix, checked against each other: what is wrong is named."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat

FLOATS = (StorageFormat.BF16, StorageFormat.F16, StorageFormat.F32)


@dataclass(frozen=True)
class Parts:
    """Tensors by the last word of their names; ``module`` is what goes before it. Methods raise ``CheckpointError``."""

    module: str
    tensors: Mapping[str, CheckpointTensor]

    def __contains__(self, leaf: str) -> bool:
        return leaf in self.tensors

    @property
    def name(self) -> str:
        """What the matrix is called where it is stored plainly."""
        return f"{self.module}.weight"

    def matrix(self, leaf: str, formats: Iterable[StorageFormat], shape: tuple[int, ...] | None = None) -> Any:
        """The array ``[rows, cols]`` of ``leaf``, of exactly ``shape`` where one is given."""
        array = self.array(leaf, formats)
        if shape is not None and array.shape != shape:
            raise self.wrong(leaf, f"has shape {list(array.shape)}; the tensors beside it ask for {list(shape)}")
        if array.ndim != 2 or 0 in array.shape:
            raise self.wrong(leaf, f"has shape {list(array.shape)}, which is no matrix")
        return array

    def array(self, leaf: str, formats: Iterable[StorageFormat]) -> npt.NDArray[Any]:
        """The array of ``leaf``, which must be stored in one of ``formats``."""
        if leaf not in self.tensors:
            raise CheckpointError(
                f"the model has no tensor {self.module}.{leaf}, without which {self._others} are none"
            )
        tensor = self.tensors[leaf]
        if tensor.fmt not in (allowed := tuple(formats)):
            raise self.wrong(leaf, f"is stored as {tensor.fmt}, not as {' or '.join(allowed)}")
        return tensor.array()

    def scales(self, leaf: str) -> npt.NDArray[Any]:
        """The scales of ``leaf``, which must be finite."""
        array = self.array(leaf, FLOATS)
        if not np.isfinite(array.astype(np.float32)).all():
            raise self.wrong(leaf, "holds scales that are infinite or no numbers")
        return array

    def group_scales(self, leaf: str, rows: int, cols: int) -> npt.NDArray[Any]:
        """Scales ``[rows, groups]`` of a matrix; one for all of it or one a row may be stored with fewer dimensions."""
        scale = self.scales(leaf)
        if scale.size == 1:
            return np.broadcast_to(scale.reshape(1, 1), (rows, 1))
        scale = scale.reshape(rows, 1) if scale.shape == (rows,) else scale
        if scale.ndim != 2 or scale.shape[0] != rows or not 0 < scale.shape[1] <= cols:
            raise self.wrong(leaf, f"has shape {list(scale.shape)}, which are no groups of rows of {[rows, cols]}")
        return scale

    def column_groups(self, leaf: str, cols: int, groups: int) -> npt.NDArray[np.intp] | None:
        """The group of each input, or ``None`` where groups are runs of inputs (also: -1, which tools write unset)."""
        indices = self.array(leaf, (StorageFormat.I32, StorageFormat.I64)).astype(np.intp)
        if indices.shape != (cols,):
            raise self.wrong(leaf, f"has shape {list(indices.shape)}; the tensors beside it ask for [{cols}]")
        if (indices == -1).all() or (cols % groups == 0 and (indices == np.arange(cols) // (cols // groups)).all()):
            return None
        if indices.min() < 0 or indices.max() >= groups:
            raise self.wrong(leaf, f"names groups {indices.min()} to {indices.max()}, but there are {groups}")
        return indices

    def wrong(self, leaf: str, what: str) -> CheckpointError:
        return CheckpointError(f"tensor {self.module}.{leaf} {what}")

    @property
    def _others(self) -> str:
        return ", ".join(f"{self.module}.{leaf}" for leaf in self.tensors)
