"""Checks on what an executor is given. Executors that cannot afford them per step run them in tests."""

from collections.abc import Mapping

import numpy as np

from trimaran.base.errors import CheckpointError, ConfigError
from trimaran.base.formats import CacheGroup
from trimaran.kernels.kv_scales import check_scales
from trimaran.kernels.program import Program
from trimaran.kernels.step import ExecutorOptions, Int32, StepInputs
from trimaran.kernels.weights import Outliers, Weight


def check_options(options: ExecutorOptions) -> None:
    """Raises ``ConfigError`` naming the option that is out of range."""
    if options.page_size < 16 or options.page_size % 16:
        raise ConfigError(f"page_size must be a positive multiple of 16, not {options.page_size}")
    counts = (options.num_pages,) if isinstance(options.num_pages, int) else options.num_pages
    if min(counts) < 2:
        raise ConfigError(f"num_pages must be at least 2 (page 0 is the null page), not {min(counts)}")
    for name in ("max_rows", "max_sequences"):
        if getattr(options, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(options, name)}")
    if options.threads < 0:
        raise ConfigError(f"threads must not be negative, not {options.threads}")


def check_pages(program: Program, options: ExecutorOptions) -> None:
    """Raises ``ConfigError`` when a cache of the program cannot have pages of the format, or scales are missing."""
    for group in program.groups:
        group.page_bytes(options.kv_format, options.page_size)
    check_scales(options.kv_scales, options.kv_format, program.groups)


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
        if weight.outliers is not None:
            check_outliers(weight.name, weight.outliers, *spec.shape)


def check_outliers(name: str, outliers: Outliers, rows: int, cols: int) -> None:
    """Raises ``CheckpointError`` unless they name places of a matrix ``[rows, cols]``, in order."""
    starts, columns = outliers.starts, outliers.columns
    if not len(starts) == rows + 1 or starts[0] or np.any(np.diff(starts) < 0) or starts[-1] != len(columns):
        raise CheckpointError(f"the outliers of {name} are not shared out among its {rows} rows")
    if len(outliers.values) != len(columns) or not np.isfinite(outliers.values).all():
        raise CheckpointError(f"the outliers of {name} are not a finite number for each column that is named")
    row = np.repeat(np.arange(rows, dtype=np.int64), np.diff(starts))
    if not _within(columns, cols) or np.any(np.diff(row * cols + columns) <= 0):
        raise CheckpointError(f"the outliers of {name} do not lie in ascending columns below {cols}")


def check_step(step: StepInputs, program: Program, options: ExecutorOptions) -> None:
    """Raises ``ValueError`` that says how the step breaks the contract of ``StepInputs``."""
    arrays = (step.tokens, step.starts, step.contexts, step.slots, *step.page_tables, step.logits_rows)
    _need(all(array.dtype == np.int32 for array in arrays), "every array must be int32")
    rows, sequences = len(step.tokens), len(step.contexts)
    _need(1 <= rows <= options.max_rows, f"{rows} rows, not 1 to {options.max_rows}")
    _need(1 <= sequences <= options.max_sequences, f"{sequences} sequences, not 1 to {options.max_sequences}")
    _need(len(step.starts) == sequences + 1, f"{len(step.starts)} starts for {sequences} sequences")
    _need(len(step.slots) == sequences, f"{len(step.slots)} slots for {sequences} sequences")
    lengths = np.diff(step.starts)
    _need(step.starts[0] == 0 and step.starts[-1] == rows, f"starts do not run from 0 to the {rows} rows")
    _need(lengths.min() > 0, "starts must rise: a sequence has no rows")
    _need(_within(step.tokens, program.vocab), f"tokens must lie in 0 to {program.vocab - 1}")
    if step.types is not None:
        _need(step.types.dtype == np.int32, "every array must be int32")
        _need(len(step.types) == rows, f"{len(step.types)} types for {rows} rows")
        _need(_within(step.types, program.types), f"types must lie in 0 to {program.types - 1}")
    ends = step.contexts + lengths
    _need(_within(step.contexts, program.context), f"positions must lie in 0 to {program.context - 1}")
    _need(ends.max() <= program.context, f"positions must lie in 0 to {program.context - 1}")
    wanted = len(step.logits_rows)
    _need(wanted <= options.max_sequences, f"{wanted} logits rows, more than {options.max_sequences}")
    _need(_within(step.logits_rows, rows), f"logits_rows must lie in 0 to {rows - 1}")
    _need(bool((np.diff(step.logits_rows) > 0).all()), "logits_rows must ascend")
    _need(len(step.page_tables) == len(program.groups), f"{len(step.page_tables)} page tables")
    _need(len(np.unique(step.slots)) == len(step.slots), "two sequences share a slot")
    for number, group in enumerate(program.groups):
        _check_pages(step, ends, number, group, options)


def _check_pages(step: StepInputs, ends: Int32, number: int, group: CacheGroup, options: ExecutorOptions) -> None:
    table, num_pages = step.page_tables[number], options.pages_of(number)
    _need(_within(step.slots, len(table)), f"slots must lie in 0 to {len(table) - 1}")
    pages = -(-ends // options.page_size)
    _need(pages.max() <= table.shape[1], f"a sequence needs {pages.max()} pages, the table holds {table.shape[1]}")
    written: set[int] = set()
    seen = 0 if group.window is None else np.maximum(step.contexts - group.window + 1, 0) // options.page_size
    first_seen = np.broadcast_to(seen, step.contexts.shape)
    firsts = step.contexts // options.page_size
    for slot, begin, first, last in zip(step.slots, first_seen, firsts, pages, strict=True):
        row = table[slot, :last]
        _need(_within(row[begin:], num_pages), f"pages must lie in 0 to {num_pages - 1}")
        own = set(row[first:].tolist()) - {0}  # any number of sequences may write to the null page: nobody relies on it
        _need(written.isdisjoint(own), f"two sequences write to page {min(written & own, default=0)}")
        written |= own


def _within(values: Int32, end: int) -> bool:
    return bool(((values >= 0) & (values < end)).all())


def _need(holds: bool | np.bool_, message: str) -> None:
    if not holds:
        raise ValueError(f"invalid step: {message}")
