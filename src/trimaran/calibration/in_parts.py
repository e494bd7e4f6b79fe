"""A forward over more text than memory holds: part after part does an op, with activations on disk in between.

A matrix is asked for once, with what the first part multiplies it with, and kept until all parts had it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from trimaran.calibration.forward import Forward, Weights
from trimaran.calibration.on_disk import OnDisk
from trimaran.kernels.program import Linear, Op, Program
from trimaran.kernels.step import Float32


class Forwards:
    """One forward for each part, in step; to be closed."""

    def __init__(
        self, program: Program, weights: Weights, parts: Sequence[Sequence[Sequence[int]]], folder: Path
    ) -> None:
        """``parts`` have texts each; activations lie in ``folder``."""
        self._weights = _Last(weights)
        self._buffers = [OnDisk(folder) for _ in parts]
        self._parts = [
            Forward(program, self._weights, part, buffers) for part, buffers in zip(parts, self._buffers, strict=True)
        ]

    def body(self) -> Iterator[Op]:
        """The ops of all layers, to be applied in order."""
        return self._parts[0].body()

    def inputs(self, op: Linear) -> Iterator[Float32]:
        """What the op's matrix is about to be multiplied with, part by part."""
        return (part.buffers[op.x] for part in self._parts)

    def apply(self, op: Op) -> None:
        """Does one op for all parts."""
        for part in self._parts:
            part.apply(op)
        self._weights.drop()

    def close(self) -> None:
        """Drops all activations."""
        for buffers in self._buffers:
            buffers.close()


class _Last:
    """Weights, the last matrix of which is kept until it is dropped."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._last: tuple[str, int, Float32] | None = None

    def vector(self, name: str) -> Float32:
        return self._weights.vector(name)

    def table_rows(self, name: str, ids: Sequence[int]) -> Float32:
        return self._weights.table_rows(name, ids)

    def matrix(self, name: str, rows: slice, inputs: Float32) -> Float32:
        if self._last is None or self._last[:2] != (name, rows.start):
            self._last = None
            self._last = name, rows.start, self._weights.matrix(name, rows, inputs)
        return self._last[2]

    def drop(self) -> None:
        self._last = None
