"""Fills a program's weights from a checkpoint: every tensor is placed, checked and, where asked, converted."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from trimaran.base.errors import CheckpointError
from trimaran.base.formats import WeightFormat
from trimaran.checkpoint import Checkpoint
from trimaran.kernels.program import Program, WeightSpec
from trimaran.kernels.weights import Weight
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
    """The weights of ``program``, by its names.

    ``weight_format`` ``None`` keeps each tensor's own grid; otherwise matrices are held in it, except that embedding
    and output matrix are held as int8 where a coarser format is asked for. No matrix is in a coarser format than the
    program says. Vectors are fp32. Tied matrices are one object under two names. Tensors that a program reads as one
    matrix are stacked in the finest format among them (``models/held.py``); what this rounds is logged.

    Raises ``CheckpointError`` naming the tensors that are missing, left over or misshapen, and ``UnsupportedError``
    when a matrix does not fit ``weight_format``.
    """
    _check_size(checkpoint, program)
    parts = {
        spec.name: weight_parts(spec.name, spec.shape[0], cfg, checkpoint.kind)
        for spec in program.weights.values()
        if not (cfg.tied and spec.name == "lm_head")
    }
    tensors = logical_tensors(checkpoint)
    _check_names(tensors, cfg, [part.tensor for weight in parts.values() for part in weight])
    place = {part.tensor: (program.weights[name], part) for name, weight in parts.items() for part in weight}
    readers = Counter(part.tensor for weight in parts.values() for part in weight)
    loaded: dict[str, Weight] = {}
    for tensor in tensors:
        if (name := text_name(tensor.name)) in place:
            loaded[name] = _load(tensor.open(), *place[name], weight_format)

    def rows(part: Part) -> Weight:
        weight = take_rows(loaded[part.tensor], part.row_order())
        if part.head_rows is not None and part.head_rows.transposed:
            weight = transpose_heads(weight, part.head_rows.heads)
        readers[part.tensor] -= 1
        if not readers[part.tensor]:
            del loaded[part.tensor]
        return weight

    rounded: _Rounded = {}
    weights = {name: _stack(program.weights[name], list(map(rows, weight)), rounded) for name, weight in parts.items()}
    for (old, new), names in rounded.items():
        subject = f"{_listed(names, most=1)} {'is' if len(names) == 1 else 'are'}"
        log.warning("%s rounded from %s to %s, the format of the tensors beside it", subject, old, new)
    if cfg.tied:
        weights["lm_head"] = weights["model.embed_tokens"]
    return weights


def _check_size(checkpoint: Checkpoint, program: Program) -> None:
    """A damaged configuration may ask for a billion experts: found before their names are made."""
    values = max(prod(spec.shape) for spec in program.weights.values())
    held = sum(tensor.data.nbytes for tensor in checkpoint.tensors())
    if values > 8 * held:  # no format has less than a bit a value
        name = next(spec.name for spec in program.weights.values() if prod(spec.shape) == values)
        raise CheckpointError(f"the model's sizes ask for {values} values of {name}; all its files hold {held} bytes")


def _check_names(tensors: Sequence[LogicalTensor], cfg: ModelConfig, wanted: Sequence[str]) -> None:
    present = {text_name(tensor.name): tensor for tensor in tensors}
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


def _load(tensor: Stored, spec: WeightSpec, part: Part, weight_format: WeightFormat | None) -> Weight:
    expected = part.shape(spec.shape[1:])
    if tensor.shape != expected:
        raise CheckpointError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}; the model's sizes ask for {list(expected)}"
        )
    if not spec.matrix:
        vector = to_vector(tensor)
        return replace(vector, data=vector.data.astype(np.float32) + np.float32(1)) if part.less_one else vector
    if weight_format is None:
        return to_weight(tensor, fine_enough(spec, tensor.default()))
    return to_weight(tensor, held_format(spec, weight_format))


_Rounded = dict[tuple[WeightFormat, WeightFormat], list[str]]


def _stack(spec: WeightSpec, parts: Sequence[Weight], rounded: _Rounded) -> Weight:
    fmt = finest(part.fmt for part in parts)
    for part in parts:
        if not lossless(part.fmt, fmt):
            rounded.setdefault((part.fmt, fmt), []).append(part.name)
    return stack_rows(spec.name, [recast(part, fmt) for part in parts])
