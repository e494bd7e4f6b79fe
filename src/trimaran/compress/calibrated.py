"""Compresses matrices in the model's order while calibration text runs through what is compressed already.

A matrix meets the inputs that it will meet in the compressed model. It is rounded with compensation
(``quant/compensated.py``) for most of the text's tokens, and by itself; the last tokens, which compensation did not
see, tell which of the two keeps its outputs closer.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from trimaran.base.errors import CheckpointError
from trimaran.calibration.forward import Forward
from trimaran.calibration.texts import LENGTH, mixed, token_bytes
from trimaran.calibration.weights import StreamedWeights
from trimaran.compress.fill import Progress
from trimaran.compress.plan import Item, Report
from trimaran.compress.recipe import CompensatingRecipe
from trimaran.compress.shards import Shards
from trimaran.compress.source import Source
from trimaran.kernels.program import Program
from trimaran.kernels.step import Float32
from trimaran.models.config import ModelConfig
from trimaran.models.names import Part, text_name
from trimaran.models.registry import build_program, read_config
from trimaran.quant.compensated import Factor, factor
from trimaran.quant.stored import Stored

_HELD_OUT = 8  # one in so many tokens
_ACTIVATIONS = 256 << 20  # bytes that the texts may take on their way
_PIECE = 1 << 19  # values that one thread rounds at a time
_THREADS = 8  # at most
_FEWEST = 64  # tokens that say something about a matrix's inputs


def fill_calibrated(
    source: Source,
    texts: Sequence[Sequence[Sequence[int]]],
    items: Sequence[Item],
    recipe: CompensatingRecipe,
    shards: Shards,
    done: Report,
    report: Progress,
) -> list[Item]:
    """Writes the matrices among ``items`` that the model's forward reads; returns the other items.

    ``texts`` have rows of token ids each, of which as many are taken as memory allows; the last are held out. Raises
    ``CheckpointError`` on weights that are not finite, and as ``read_config`` does.
    """
    cfg = read_config(source.checkpoint)
    program = build_program(cfg)
    wanted = {text_name(item.tensor.name): item for item in items if item.kept is None}
    report(0, done.bytes_after)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        weights = _Compressing(source, cfg, program, wanted, recipe, shards, done, report, threads)
        most = max(1, _ACTIVATIONS // token_bytes(program) // LENGTH)
        Forward(program, weights, mixed(texts, most)).run()
    return [item for item in items if text_name(item.tensor.name) not in weights.written]


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
        self._inputs: _Inputs | None = None
        self._shared: tuple[str, Float32] | None = None  # kv_b_proj, which two matrices are made from

    def parts(self, parts: Sequence[Part], columns: tuple[int, ...], inputs: Float32) -> list[Float32]:
        self._inputs = None
        if any(part.tensor in self._items and part.tensor not in self.written for part in parts):
            self._inputs = _Inputs.of(inputs, self._recipe)
        found = super().parts(parts, columns, inputs)
        self._inputs = None
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
        if self._inputs is None or self._inputs.factor is None:
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
        if self._inputs is not None and self._inputs.factor is not None:
            held_out = self._inputs.held_out
            together = self._recipe.encode_together(values, self._inputs.factor)
            off_alone, off = (_off(held_out, values - piece.values) for piece in (alone, together))
            outputs = _off(held_out, values)
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


@dataclass(frozen=True)
class _Inputs:
    """What a matrix is multiplied with: ``factor`` is of most tokens; ``None`` where they are few or make none."""

    factor: Factor | None
    held_out: Float32

    @classmethod
    def of(cls, inputs: Float32, recipe: CompensatingRecipe) -> "_Inputs":
        if len(inputs) < _FEWEST:
            return cls(None, inputs)
        weighed = _weighed(inputs)
        cut = len(inputs) - len(inputs) // _HELD_OUT
        seen = weighed[:cut]
        moments = seen.T @ seen
        try:
            return cls(factor(moments, recipe.order(moments)), weighed[cut:])
        except np.linalg.LinAlgError:
            return cls(None, weighed[cut:])


def _weighed(inputs: Float32) -> Float32:
    """Tokens, each counting no more than the median one: some (the first of a text, above all) have inputs hundreds of
    times larger, which the next norm takes away again."""
    squares = np.einsum("ij,ij->i", inputs, inputs)
    most = np.sqrt(np.median(squares) / np.maximum(squares, np.finfo(np.float32).tiny))
    weighed: Float32 = inputs * np.minimum(most, 1).astype(np.float32)[:, None]
    return weighed


def _off(inputs: Float32, weights: Float32) -> float:
    return float(np.square(inputs @ weights.T).sum(dtype=np.float64))
