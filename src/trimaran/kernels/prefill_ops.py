"""Programs that compute prompts with weights of their own, and which rows of a step those are.

Which weights a row meets is a function of its request alone: a row of the prompt meets those of
``Program.prefill_ops``, a row of a token that was generated those of ``Program.ops``, whatever comes with it and
however often it is computed. Both lists are the same ops over the same buffers and pages; they differ in names of
weights. A weight that both formats hold alike has one name in both.
"""

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from trimaran.kernels.program import HeadNorm, Op, Program
from trimaran.kernels.step import StepInputs
from trimaran.kernels.weights import Weight

_PREFIX = "prefill:"  # of the names of weights that prompts have for themselves


def with_prefill_ops(program: Program, weights: Collection[str]) -> Program:
    """The program with ops of their own for rows of prompts, as far as ``weights`` names weights for them.

    ``weights`` are the names that ``merge_weights`` has given. A program without such names stays as it is.
    """
    own = {name: _PREFIX + name for name in program.weights if _PREFIX + name in weights}
    if not own:
        return program
    specs = {name: replace(program.weights[of], name=name) for of, name in own.items()}
    ops: tuple[Op, ...] = tuple(_renamed(op, own) for op in program.ops)
    return replace(program, weights=program.weights | specs, prefill_ops=ops)


def merge_weights(weights: Mapping[str, Weight], prefill: Mapping[str, Weight]) -> dict[str, Weight]:
    """``weights``, and those of ``prefill`` that differ from them, under names of their own."""
    own = {_PREFIX + name: weight for name, weight in prefill.items() if not _equal(weight, weights[name])}
    return {**weights, **own}


def split_weights(weights: Mapping[str, Weight]) -> tuple[dict[str, Weight], dict[str, Weight]]:
    """Undoes ``merge_weights``: the weights of generated tokens, and those of prompts, all of each."""
    decode = {name: weight for name, weight in weights.items() if not name.startswith(_PREFIX)}
    return decode, {name: weights.get(_PREFIX + name, weight) for name, weight in decode.items()}


def programs_of(program: Program) -> tuple[Program, ...]:
    """A program for each list of ops: that of all rows, or those of generated tokens and of prompts."""
    alone = replace(program, prefill_ops=())
    return (alone, replace(alone, ops=program.prefill_ops)) if program.prefill_ops else (alone,)


class Part(NamedTuple):
    """Some consecutive sequences of a step, to be run by one list of ops."""

    step: StepInputs
    prefill: bool = False  # by ``prefill_ops``
    first_sequence: int = 0  # of the whole step
    first_result: int = 0


def parts_of(step: StepInputs) -> tuple[Part, ...]:
    """A step of a program whose prompts have ops of their own: one part, or two in the order of rows.

    Raises ``ValueError`` when the step does not tell its rows apart.
    """
    sequences, decoding = len(step.contexts), step.decoding
    if decoding is None or not 0 <= decoding <= sequences:
        raise ValueError(f"invalid step: decoding is {decoding}, not the first 0 to {sequences} sequences")
    if decoding in (0, sequences):
        return (Part(step, prefill=decoding == 0),)
    row = int(step.starts[decoding])
    result = int(np.searchsorted(step.logits_rows, row))
    first = replace(
        step,
        tokens=step.tokens[:row],
        starts=step.starts[: decoding + 1],
        contexts=step.contexts[:decoding],
        slots=step.slots[:decoding],
        logits_rows=step.logits_rows[:result],
        readers=None if step.readers is None else step.readers[:decoding],
        types=None if step.types is None else step.types[:row],
    )
    second = replace(
        step,
        tokens=step.tokens[row:],
        starts=step.starts[decoding:] - row,
        contexts=step.contexts[decoding:],
        slots=step.slots[decoding:],
        logits_rows=step.logits_rows[result:] - row,
        readers=None if step.readers is None else step.readers[decoding:],
        types=None if step.types is None else step.types[row:],
    )
    return Part(first), Part(second, prefill=True, first_sequence=decoding, first_result=result)


def _renamed(op: Op, names: Mapping[str, str]) -> Any:
    """The op with other names of weights; they are its only texts that are such names."""
    changes: dict[str, Any] = {}
    for field in fields(op):
        value = getattr(op, field.name)
        if isinstance(value, str) and value in names:
            changes[field.name] = names[value]
        elif isinstance(value, HeadNorm) and value.weight in names:
            changes[field.name] = replace(value, weight=names[value.weight])
    return replace(op, **changes)


def _equal(a: Weight, b: Weight) -> bool:
    """Whether two weights are the same numbers in the same format."""
    if (a.fmt, a.shape) != (b.fmt, b.shape) or (a.outliers is None) != (b.outliers is None):
        return False
    pairs: list[tuple[Any, Any]] = [(getattr(a, name), getattr(b, name)) for name in _ARRAYS]
    if a.outliers is not None and b.outliers is not None:
        pairs += [(getattr(a.outliers, name), getattr(b.outliers, name)) for name in ("starts", "columns", "values")]
    return all((x is None) == (y is None) and (x is None or np.array_equal(x, y)) for x, y in pairs)


_ARRAYS = ("data", "scale", "minimum", "codebook")
