"""A program's weights straight from a checkpoint, each read when it is asked for and kept by nobody."""

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.checkpoint import Kind
from trimaran.kernels.program import Program
from trimaran.kernels.step import Float32
from trimaran.models.config import ModelConfig
from trimaran.models.names import Part, text_name, weight_parts
from trimaran.quant.logical import LogicalTensor
from trimaran.quant.stored import Stored, matrix_shape

_PIECE = 1 << 20  # values that are widened at a time
_RELEASE = 64 << 20  # values after which what was read of the file is dropped from memory


class StreamedWeights:
    """The ``Weights`` of a forward, as float32; for subclasses that look at inputs, or change matrices, ``parts``.

    ``tensors`` are all of the model's, named as ``kind`` names them; ``release`` is ``Checkpoint.release``.
    """

    def __init__(
        self,
        tensors: Iterable[LogicalTensor],
        kind: Kind,
        cfg: ModelConfig,
        program: Program,
        release: Callable[[], None],
    ) -> None:
        self._tensors = {text_name(tensor.name): tensor for tensor in tensors}
        self._specs = program.weights
        self._stored = {
            name: weight_parts(
                "model.embed_tokens" if cfg.tied and name == "lm_head" else name, spec.shape[0], cfg, kind
            )
            for name, spec in program.weights.items()
        }
        self._release = release
        self._read = 0

    def vector(self, name: str) -> Float32:
        parts = self._stored[name]
        values = [self.open(part, ()).values(slice(None)).ravel()[part.row_order()] for part in parts]
        return np.concatenate([value + np.float32(part.less_one) for value, part in zip(values, parts, strict=True)])

    def table_rows(self, name: str, ids: Sequence[int]) -> Float32:
        (part,) = self._stored[name]
        stored = self.open(part, self._specs[name].shape[1:])
        distinct, places = np.unique(ids, return_inverse=True)
        return np.concatenate([stored.values(slice(token, token + 1)) for token in distinct.tolist()])[places]

    def matrix(self, name: str, rows: slice, inputs: Float32) -> Float32:
        parts = self._stored[name]
        starts = itertools.accumulate((part.rows for part in parts), initial=0)
        wanted = [part for start, part in zip(starts, parts, strict=False) if rows.start <= start < rows.stop]
        found = self.parts(wanted, self._specs[name].shape[1:], inputs)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def parts(self, parts: Sequence[Part], columns: tuple[int, ...], inputs: Float32) -> list[Float32]:  # noqa: ARG002, for subclasses
        """The rows that each of ``parts`` is, ``columns`` wide; all of them are multiplied with ``inputs``."""
        return [self._values(part, columns) for part in parts]

    def open(self, part: Part, columns: tuple[int, ...]) -> Stored:
        """The tensor that holds ``part``; raises ``CheckpointError`` where there is none, or of another shape."""
        if part.tensor not in self._tensors:
            raise CheckpointError(f"the model has no tensor {part.tensor}")
        stored = self._tensors[part.tensor].open()
        if stored.shape != part.shape(columns):
            raise CheckpointError(
                f"tensor {stored.name} has shape {list(stored.shape)}; the model's sizes ask for"
                f" {list(part.shape(columns))}"
            )
        return stored

    def _values(self, part: Part, columns: tuple[int, ...]) -> Float32:
        stored, order = self.open(part, columns), part.row_order()
        if isinstance(order, slice):
            values = self.read(stored, order)
        else:
            values = self.read(stored, slice(0, matrix_shape(stored.shape)[0]))[order]
        if part.head_rows is not None and part.head_rows.transposed:
            heads = values.reshape(part.head_rows.heads, -1, values.shape[1])
            values = heads.swapaxes(1, 2).reshape(part.rows, -1)
        return values

    def read(self, stored: Stored, rows: slice) -> Float32:
        """Those rows of a tensor, a few at a time, so that what they are made from takes little memory."""
        values = np.empty((rows.stop - rows.start, matrix_shape(stored.shape)[1]), np.float32)
        step = max(1, _PIECE // values.shape[1])
        for at in range(0, len(values), step):
            piece = slice(rows.start + at, min(rows.start + at + step, rows.stop))
            values[at : at + step] = stored.values(piece)
            self._read += values.shape[1] * (piece.stop - piece.start)
            if self._read > _RELEASE:
                self._release()
                self._read = 0
        return values
