"""Fills a program's weights from a checkpoint: every tensor is placed, checked and, where asked, converted."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from trimaran.base.errors import CheckpointError
from trimaran.base.formats import WeightFormat
from trimaran.checkpoint import Checkpoint
from trimaran.kernels.program import Program, WeightSpec
from trimaran.kernels.weights import NO_NUMBERS, Weight
from trimaran.models.config import ModelConfig
from trimaran.models.held import fine_enough, finest, held_format
from trimaran.models.names import Part, text_name, weight_parts
from trimaran.models.skipped import why_skipped
from trimaran.quant.convert import lossless, recast, to_vector, to_weight
from trimaran.quant.logical import LogicalTensor, logical_tensors
from trimaran.quant.rows import stack_rows, take_rows, transpose_heads
from trimaran.quant.stored import Stored

log = logging.getLogger(__name__)


def load_weights(
    checkpoint: Checkpoint, cfg: ModelConfig, program: Program, weight_format: WeightFormat | None
) -> dict[str, Weight]:
    """All weights of ``program`` at once, as a ``WeightReader`` reads them; raises what it does."""
    return WeightReader(checkpoint, cfg, program, weight_format).read_all()


class WeightReader:
    """Reads the weights of a program, by its names, each when it is asked for: who packs one after the other holds the
    numbers of one at a time beside what is packed.

    ``weights`` are all of them, by format and shape alone; but whole where they have codebooks, whose outliers have to
    be known beforehand. Tied matrices are one object under two names.
    """

    def __init__(
        self, checkpoint: Checkpoint, cfg: ModelConfig, program: Program, weight_format: WeightFormat | None
    ) -> None:
        """``weight_format`` ``None`` keeps each tensor's own grid; otherwise matrices are held in it, except that
        embedding and output matrix are held as int8 where a coarser format is asked for. No matrix is in a coarser
        format than the program says. Vectors are fp32. Tensors that a program reads as one matrix are stacked in the
        finest format among them (``models/held.py``); what this rounds is logged.

        Raises ``CheckpointError`` naming the tensors that are missing, left over or misshapen, and ``UnsupportedError``
        for those that are not read.
        """
        _check_size(checkpoint, program)
        parts = {
            spec.name: weight_parts(spec.name, spec.shape[0], cfg, checkpoint.kind)
            for spec in program.weights.values()
            if not (cfg.tied and spec.name == "lm_head")
        }
        wanted = {part.tensor: None for weight in parts.values() for part in weight}
        tensors = {text_name(tensor.name): tensor for tensor in logical_tensors(checkpoint)}
        _check_names(tensors, cfg, wanted)
        stored = {name: tensors[name].open() for name in wanted}
        self._sources = {
            name: [_source(stored[part.tensor], program.weights[name], part, weight_format) for part in weight]
            for name, weight in parts.items()
        }
        _tell_rounded(self._sources.values())
        self.weights: dict[str, Weight] = {}
        for name, sources in self._sources.items():
            fmt = _format(sources)
            bare = Weight(name, fmt, program.weights[name].shape, NO_NUMBERS)
            self.weights[name] = self._stacked(name) if fmt.levels else bare
        if cfg.tied:
            self.weights["lm_head"] = self.weights["model.embed_tokens"]

    def read(self, name: str) -> Weight:
        """The weight with its numbers, which nothing but the caller holds. Raises ``UnsupportedError`` when a matrix
        does not fit its format."""
        known = self.weights[name]
        return known if known.fmt.levels else self._stacked(known.name)

    def read_all(self) -> dict[str, Weight]:
        """Every weight with its numbers; tied ones stay one object."""
        read = {known.name: self.read(known.name) for known in self.weights.values()}
        return {name: read[known.name] for name, known in self.weights.items()}

    def _stacked(self, name: str) -> Weight:
        sources = self._sources[name]
        fmt, whole, parts = _format(sources), dict[str, Weight](), []
        for source in sources:
            if source.part.tensor not in whole:  # one tensor may have the matrices of all experts
                whole[source.part.tensor] = source.weight()
            parts.append(recast(source.rows(whole[source.part.tensor]), fmt))
        return stack_rows(name, parts)


@dataclass(frozen=True)
class _Source:
    """Where rows of a weight are, and the format that they come in."""

    tensor: Stored
    part: Part
    matrix: bool
    fmt: WeightFormat

    def weight(self) -> Weight:
        """The whole tensor."""
        if self.matrix:
            return to_weight(self.tensor, self.fmt)
        vector = to_vector(self.tensor)
        return replace(vector, data=vector.data.astype(np.float32) + np.float32(1)) if self.part.less_one else vector

    def rows(self, weight: Weight) -> Weight:
        """The part's rows of it."""
        rows = take_rows(weight, self.part.row_order())
        if self.part.head_rows is not None and self.part.head_rows.transposed:
            return transpose_heads(rows, self.part.head_rows.heads)
        return rows


def _source(tensor: Stored, spec: WeightSpec, part: Part, weight_format: WeightFormat | None) -> _Source:
    expected = part.shape(spec.shape[1:])
    if tensor.shape != expected:
        raise CheckpointError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}; the model's sizes ask for {list(expected)}"
        )
    if not spec.matrix:
        fmt = WeightFormat.FP32
    elif weight_format is None:
        fmt = fine_enough(spec, tensor.default())
    else:
        fmt = held_format(spec, weight_format)
    return _Source(tensor, part, spec.matrix, fmt)


def _format(sources: Sequence[_Source]) -> WeightFormat:
    return finest(source.fmt for source in sources)


def _tell_rounded(weights: Collection[Sequence[_Source]]) -> None:
    rounded: dict[tuple[WeightFormat, WeightFormat], list[str]] = {}
    for sources in weights:
        fmt = _format(sources)
        for source in sources:
            if not lossless(source.fmt, fmt):
                rounded.setdefault((source.fmt, fmt), []).append(source.tensor.name)
    for (old, new), names in rounded.items():
        subject = f"{_listed(names, most=1)} {'is' if len(names) == 1 else 'are'}"
        log.warning("%s rounded from %s to %s, the format of the tensors beside it", subject, old, new)


def _check_size(checkpoint: Checkpoint, program: Program) -> None:
    """A damaged configuration may ask for a billion experts: found before their names are made."""
    values = max(prod(spec.shape) for spec in program.weights.values())
    held = sum(tensor.data.nbytes for tensor in checkpoint.tensors())
    if values > 8 * held:  # no format has less than a bit a value
        name = next(spec.name for spec in program.weights.values() if prod(spec.shape) == values)
        raise CheckpointError(f"the model's sizes ask for {values} values of {name}; all its files hold {held} bytes")


def _check_names(present: Mapping[str, LogicalTensor], cfg: ModelConfig, wanted: Collection[str]) -> None:
    if missing := [name for name in wanted if name not in present]:
        raise CheckpointError(f"the model has no tensor {_listed(missing)}, which the {cfg.family} family needs")
    skipped: dict[str, list[str]] = {}
    unknown: list[str] = []
    for name in sorted(present.keys() - set(wanted)):
        reason = why_skipped(name, cfg) or ("biases of zeros" if _adds_nothing(present[name]) else None)
        (unknown if reason is None else skipped.setdefault(reason, [])).append(name)
    if unknown:
        raise CheckpointError(f"the model has tensors that the {cfg.family} family does not know: {_listed(unknown)}")
    for reason, names in skipped.items():
        log.info("skipped %s (%d): %s", reason, len(names), _listed(names, most=1))


def _adds_nothing(tensor: LogicalTensor) -> bool:
    """True for a bias of zeros, which GPTQ's tools write beside every matrix."""
    return tensor.name.endswith(".bias") and not tensor.open().values(slice(None)).any()


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
