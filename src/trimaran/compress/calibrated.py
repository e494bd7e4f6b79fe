"""Compresses matrices in the model's order while calibration text runs through what is compressed already, and through
the model as it was.

A matrix meets the inputs that it will meet in the compressed model, and shall give the outputs that it gave in the
other: it makes up for what those before it have lost. It is rounded with compensation (``quant/compensated.py``) for
most of the text's tokens, and by itself; the last tokens, which compensation did not see, tell which of the two keeps
its outputs closer.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trimaran.base.errors import CheckpointError, ConfigError
from trimaran.calibration.in_parts import Forwards
from trimaran.calibration.texts import LENGTH, mixed, token_bytes
from trimaran.calibration.weights import StreamedWeights
from trimaran.compress.fill import Progress
from trimaran.compress.inputs import Inputs
from trimaran.compress.plan import Item, Report
from trimaran.compress.recipe import CompensatingRecipe
from trimaran.compress.shards import Shards
from trimaran.compress.source import Source
from trimaran.kernels.program import Experts, HeadLinear, Linear, Program
from trimaran.kernels.step import Float32
from trimaran.models.config import ModelConfig
from trimaran.models.names import Part, text_name
from trimaran.models.registry import build_program, read_config
from trimaran.quant.stored import Stored

ON_DISK = 1 << 30  # bytes that all texts may take on their way through both models
_PART = 64 << 20  # bytes of them that are in memory at a time
_TOGETHER = 256 << 20  # as that, of models whose experts must see all tokens at once
_PIECE = 1 << 19  # values that one thread rounds at a time
_THREADS = 8  # at most


def fill_calibrated(
    source: Source,
    texts: Sequence[Sequence[Sequence[int]]],
    items: Sequence[Item],
    recipe: CompensatingRecipe,
    shards: Shards,
    done: Report,
    report: Progress,
    folder: Path,
) -> list[Item]:
    """Writes the matrices among ``items`` that the model's forward reads; returns the other items.

    ``texts`` have rows of token ids each, of which as many are taken as ``ON_DISK`` allows; some are held out. Their
    activations lie in ``folder``. Raises ``ConfigError`` when its disk is too small for them, ``CheckpointError`` on
    weights that are not finite, and as ``read_config`` does.
    """
    cfg = read_config(source.checkpoint)
    program = build_program(cfg)
    parts = _parts(program, texts)
    _require_room(folder, 2 * token_bytes(program) * sum(len(row) for part in parts for row in part), done.bytes_after)
    wanted = {text_name(item.tensor.name): item for item in items if item.kept is None}
    report(0, done.bytes_after)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        exact = StreamedWeights(source.tensors, "safetensors", cfg, program, source.checkpoint.release)
        weights = _Compressing(source, cfg, program, wanted, recipe, shards, done, report, threads)
        with (
            closing(Forwards(program, exact, parts, folder)) as before,
            closing(Forwards(program, weights, parts, folder)) as after,
        ):
            for op in before.body():
                if isinstance(op, Linear) and weights.compresses(op.weight):
                    weights.inputs = Inputs.of(zip(after.inputs(op), before.inputs(op), strict=True), recipe)
                before.apply(op)
                after.apply(op)
                weights.inputs = None
    return [item for item in items if text_name(item.tensor.name) not in weights.written]


def _parts(program: Program, texts: Sequence[Sequence[Sequence[int]]]) -> list[list[Sequence[int]]]:
    """Rows of all texts, in parts that are in memory one at a time."""
    row = token_bytes(program) * LENGTH
    together = any(isinstance(op, Experts | HeadLinear) for op in program.ops)
    most = max(1, (_TOGETHER if together else ON_DISK // 2) // row)
    rows = mixed(texts, most)
    step = most if together else max(1, _PART // row)
    return [rows[at : at + step] for at in range(0, len(rows), step)]


def _require_room(folder: Path, activations: int, weights: int) -> None:
    free = shutil.disk_usage(folder).free
    if activations + weights > free:
        raise ConfigError(
            f"{folder.parent} has {free / 1e9:.2f} GB free; the model takes {weights / 1e9:.2f} GB and activations"
            f" for the text {activations / 1e9:.2f} GB more until it is done: give less text with --calibrate"
        )


class _Compressing(StreamedWeights):
    """The weights of the compressed model, each of which is made and written when the forward asks for it."""

    def __init__(
        self,
        source: Source,
        cfg: ModelConfig,
        program: Program,
        items: Mapping[str, Item],
        recipe: CompensatingRecipe,
        shards: Shards,
        done: Report,
        report: Progress,
        threads: ThreadPoolExecutor,
    ) -> None:
        super().__init__(source.tensors, "safetensors", cfg, program, source.checkpoint.release)
        self.written: set[str] = set()
        self._items = items
        self._recipe = recipe
        self._shards = shards
        self._done = done
        self._report = report
        self._bytes = 0
        self._threads = threads
        self.inputs: Inputs | None = None  # of the matrix that comes, if more is known of them than one part
        self._shared: tuple[str, Float32] | None = None  # kv_b_proj, which two matrices are made from

    def compresses(self, name: str) -> bool:
        """True when the program's weight of that name is made of tensors that are compressed."""
        return any(part.tensor in self._items for part in self._stored[name])

    def parts(self, parts: Sequence[Part], columns: tuple[int, ...], inputs: Float32) -> list[Float32]:
        known = self.inputs
        if known is None and any(part.tensor in self._items and part.tensor not in self.written for part in parts):
            self.inputs = Inputs.of([(inputs, None)], self._recipe)
        found = super().parts(parts, columns, inputs)
        self.inputs = known
        return found

    def read(self, stored: Stored, rows: slice) -> Float32:
        name = text_name(stored.name)
        if name not in self._items:
            return super().read(stored, rows)
        if self._shared is not None and self._shared[0] == name:
            values = self._shared[1]
            self._shared = None
            return values
        assert name not in self.written, name
        values = self._compress(self._items[name], super().read(stored, rows))
        if name.endswith("kv_b_proj.weight"):
            self._shared = (name, values)
        return values

    def _compress(self, item: Item, values: Float32) -> Float32:
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"tensor {item.tensor.name} holds numbers that are not finite, which cannot be compressed"
            )
        rows, cols = values.shape
        constants = self._recipe.constants(rows, cols)
        for output, array in zip(item.outputs[len(item.outputs) - len(constants) :], constants, strict=True):
            self._shards.write(output, 0, array)
        if self.inputs is None or self.inputs.factor is None:
            self._done.unseen += 1
        step = max(1, _PIECE // cols)
        for piece in self._threads.map(
            lambda at: self._round(item, slice(at, at + step), values[at : at + step]), range(0, rows, step)
        ):
            self._count(piece)
        self.written.add(text_name(item.tensor.name))
        return values

    def _round(self, item: Item, rows: slice, values: Float32) -> "_Piece":
        """Writes those rows of a matrix and puts what they have become into ``values``."""
        best = alone = self._recipe.encode(values)
        norm = float(np.square(values).sum(dtype=np.float64))
        off = off_alone = outputs = 0.0
        if self.inputs is not None and self.inputs.factor is not None:
            held_out = self.inputs.held_out
            wanted = self.inputs.exact @ values.T
            together = self._recipe.encode_together(values, self.inputs.factor)
            off_alone, off = (_squares(wanted - held_out @ piece.values.T) for piece in (alone, together))
            outputs = _squares(wanted)
            best = together if off < off_alone else alone
        written = 0
        for output, array in zip(item.outputs, best.arrays, strict=False):
            self._shards.write(output, rows.start, array)
            written += array.nbytes
        values[:] = best.values
        return _Piece(written, best.error, alone.plain_error, norm, min(off, off_alone), off_alone, outputs)

    def _count(self, piece: "_Piece") -> None:
        done = self._done
        self._bytes += piece.bytes
        done.error += piece.error
        done.plain_error += piece.plain_error
        done.norm += piece.norm
        done.outputs_error += piece.off
        done.outputs_alone += piece.off_alone
        done.outputs += piece.outputs
        self._report(self._bytes, done.bytes_after)


@dataclass(frozen=True)
class _Piece:
    bytes: int
    error: float
    plain_error: float
    norm: float
    off: float
    off_alone: float
    outputs: float


def _squares(values: Float32) -> float:
    return float(np.square(values).sum(dtype=np.float64))
