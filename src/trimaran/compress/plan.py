"""What a checkpoint becomes, decided before anything is written: which tensors, of which bytes, and what stays."""

import math
from dataclasses import dataclass, field
from math import prod

from trimaran.base.errors import UnsupportedError
from trimaran.checkpoint.tensors import StorageFormat
from trimaran.compress.choice import DROPPED, why_kept
from trimaran.compress.recipe import Output, Recipe
from trimaran.compress.renamed import Renamed
from trimaran.compress.shards import size_of
from trimaran.compress.source import Source
from trimaran.quant.logical import LogicalTensor
from trimaran.quant.stored import Plain, Stored

RELEASE = 64 << 20  # bytes of the source that may stay resident
_COARSE = 4  # bits, which most weights of a source must have more of


@dataclass
class Kept:
    """What was not compressed for one reason."""

    tensors: int = 0
    bytes: int = 0


@dataclass
class Report:
    """What was done. Errors are squared and summed, over ``norm``, the sum of the squared weights.

    ``again`` of the ``matrices`` had few bits already, so that they are rounded a second time.
    """

    matrices: int = 0
    again: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    kept: dict[str, Kept] = field(default_factory=dict)
    error: float = 0.0
    plain_error: float = 0.0
    norm: float = 0.0
    unseen: int = 0  # matrices that too little of the calibration text went through
    outputs_error: float = 0.0  # of the matrices' outputs for held-out tokens, from those of the model as it was
    outputs_alone: float = 0.0  # as that, had all been rounded without compensation
    outputs: float = 0.0  # the outputs themselves; all three squared and summed

    @property
    def rms(self) -> float:
        """Root mean square of the rounding, relative to that of the weights."""
        return math.sqrt(self.error / self.norm) if self.norm else 0.0

    @property
    def plain_rms(self) -> float:
        """As ``rms``, had all been rounded to nearest."""
        return math.sqrt(self.plain_error / self.norm) if self.norm else 0.0

    def outputs_off(self, error: float) -> float:
        """Root mean square of ``outputs_error`` or ``outputs_alone``, relative to that of the outputs."""
        return math.sqrt(error / self.outputs) if self.outputs else 0.0


@dataclass(frozen=True)
class Item:
    """A tensor of the source and what becomes of it; compressed unless ``kept`` says why not."""

    tensor: LogicalTensor
    shape: tuple[int, ...]
    outputs: tuple[Output, ...]
    kept: str | None


def make_plan(source: Source, recipe: Recipe, experts_only: bool) -> tuple[list[Item], Report]:
    """All items, in the source's order, and a report that lacks the errors; raises as ``compress`` does."""
    checkpoint = source.checkpoint
    report, items, seen = Report(bytes_before=checkpoint.tensor_bytes), [], 0
    coarse = values = 0
    for tensor in source.tensors:
        stored = tensor.open()
        item = _item(tensor, stored, recipe, experts_only)
        size = sum(map(size_of, item.outputs))
        if item.kept is None:
            if recipe.already(stored):
                raise UnsupportedError(f"{tensor.name} has so few bits already: compress the model it was made from")
            report.matrices += 1
            values += prod(item.shape)
            if isinstance(stored, Renamed) and stored.bits <= _COARSE:
                report.again += 1
                coarse += prod(item.shape)
        else:
            kept = report.kept.setdefault(item.kept, Kept())
            kept.tensors += 1
            kept.bytes += size
        report.bytes_after += size
        if item.outputs:
            items.append(item)
        seen += size
        if seen > RELEASE:  # scales were read
            checkpoint.release()
            seen = 0
    if not report.matrices:
        raise UnsupportedError(
            f"{checkpoint.path} holds nothing to compress: {'; '.join(report.kept) or 'it has no tensors'}"
        )
    if 2 * coarse > values:
        raise UnsupportedError(
            f"{checkpoint.path} holds {100 * coarse / values:.0f} % of these weights in {_COARSE} bits or fewer,"
            " rounded already: give the model it was made from, or a file of 5 bits or more"
        )
    return items, report


def _item(tensor: LogicalTensor, stored: Stored, recipe: Recipe, experts_only: bool) -> Item:
    kept = why_kept(tensor.name, stored.shape, experts_only)
    if kept is None and not recipe.fits(stored.shape[1]):
        kept = "inputs that groups do not divide"
    if kept is None:
        outputs = recipe.outputs(tensor.name.removesuffix(".weight"), *stored.shape)
    elif kept == DROPPED:
        outputs = []
    else:
        fmt = stored.held if isinstance(stored, Renamed) else StorageFormat.BF16
        fmt = stored.tensor.fmt if isinstance(stored, Plain) else fmt
        outputs = [Output(tensor.name, fmt, stored.shape)]
    return Item(tensor, stored.shape, tuple(outputs), kept)
