"""Checks on what an executor is given. Executors that cannot afford them per step run them in tests."""

from collections.abc import Mapping

import numpy as np

from trimaran.base.errors import CheckpointError, ConfigError
from trimaran.kernels.program import Program
from trimaran.kernels.step import ExecutorOptions, StepInputs
from trimaran.kernels.weights import Weight


def check_options(options: ExecutorOptions) -> None:
    """Raises ``ConfigError`` naming the option that is out of range."""
    if options.page_size < 16 or options.page_size % 16:
        raise ConfigError(f"page_size must be a positive multiple of 16, not {options.page_size}")
    if options.num_pages < 2:
        raise ConfigError(f"num_pages must be at least 2 (page 0 is the null page), not {options.num_pages}")
    for name in ("max_rows", "max_sequences"):
        if getattr(options, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(options, name)}")
    if options.threads < 0:
        raise ConfigError(f"threads must not be negative, not {options.threads}")


def check_weights(program: Program, weights: Mapping[str, Weight]) -> None:
    """Raises ``CheckpointError`` naming the weight that is missing, misshapen, or a quantised vector."""
    for spec in program.weights.values():
        if spec.name not in weights:
            raise CheckpointError(f"weight {spec.name} is missing")
        weight = weights[spec.name]
        if weight.shape != spec.shape:
            raise CheckpointError(f"weight {spec.name} has shape {list(weight.shape)}, not {list(spec.shape)}")
        if weight.fmt.quantised and not spec.matrix:
            raise CheckpointError(f"weight {spec.name} is a vector and cannot be held as {weight.fmt}")


def check_step(step: StepInputs, program: Program, options: ExecutorOptions) -> None:
    """Raises ``ValueError`` that says how the step breaks the contract of ``StepInputs``."""
    arrays = (step.tokens, step.starts, step.contexts, step.slots, step.page_table, step.logits_rows)
    _need(all(array.dtype == np.int32 for array in arrays), "every array must be int32")
    rows, sequences = len(step.tokens), len(step.contexts)
    _need(1 <= rows <= options.max_rows, f"{rows} rows; between 1 and {options.max_rows} are allowed")
    _need(1 <= sequences <= options.max_sequences, f"{sequences} sequences; at most {options.max_sequences} are allowed")
    _need(len(step.starts) == sequences + 1 and len(step.slots) == sequences, "starts, contexts and slots disagree in length")
    lengths = np.diff(step.starts)
    _need(step.starts[0] == 0 and step.starts[-1] == rows and (lengths > 0).all(), "starts must rise from 0 to the number of rows")
    _need(0 <= step.tokens.min() and step.tokens.max() < program.vocab, f"tokens must lie in 0 to {program.vocab - 1}")
    ends = step.contexts + lengths
    _need(step.contexts.min() >= 0 and ends.max() <= program.context, f"positions must lie in 0 to {program.context - 1}")
    wanted = step.logits_rows
    _need(len(wanted) <= options.max_sequences, f"{len(wanted)} logits rows; at most {options.max_sequences} are allowed")
    if len(wanted):
        _need((np.diff(wanted) > 0).all() and wanted[0] >= 0 and wanted[-1] < rows, "logits_rows must be ascending row indices")
    _check_pages(step, ends, options)


def _check_pages(step: StepInputs, ends: np.ndarray[tuple[int, ...], np.dtype[np.int32]], options: ExecutorOptions) -> None:
    pages = -(-ends // options.page_size)
    _need(step.slots.min() >= 0 and step.slots.max() < len(step.page_table), "slots must be rows of page_table")
    _need(len(set(step.slots.tolist())) == len(step.slots), "two sequences share a slot")
    _need(pages.max() <= step.page_table.shape[1], f"a sequence needs {pages.max()} pages, page_table has {step.page_table.shape[1]}")
    written: set[int] = set()
    for slot, first, last in zip(step.slots, step.contexts // options.page_size, pages, strict=True):
        row = step.page_table[slot, :last]
        _need(row.min() >= 0 and row.max() < options.num_pages, f"pages must lie in 0 to {options.num_pages - 1}")
        own = set(row[first:].tolist()) - {0}  # several sequences may write the null page: nobody reads it as truth
        _need(written.isdisjoint(own), f"two sequences write page {min(written & own, default=0)}")
        written |= own


def _need(holds: bool | np.bool_, message: str) -> None:
    if not holds:
        raise ValueError(f"invalid step: {message}")
