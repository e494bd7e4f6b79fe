"""Programs around a single op, so that an executor's op can be held against its definition."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimaran.base.formats import CacheGroup, HeadsCache, WeightFormat
from trimaran.kernels.program import Buffer, Embed, Logits, Op, Program, TakeRows, WeightSpec
from trimaran.kernels.step import StepInputs
from trimaran.kernels.weights import Outliers, Weight

X = "x"  # the table whose rows are the op's input: token t is row t


def fp32(name: str, values: np.ndarray) -> Weight:
    return Weight(name, WeightFormat.FP32, values.shape, np.ascontiguousarray(values, np.float32))


def with_outliers(weight: Weight, seed: int = 0) -> Weight:
    """Beside codebooks, a few outliers in most rows."""
    if not weight.fmt.levels:
        return weight
    rng = np.random.default_rng(seed)
    rows, cols = weight.shape
    lists = [np.sort(rng.choice(cols, row % 4, replace=False)) for row in range(rows)]
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    values = (0.2 * rng.standard_normal(starts[-1])).astype(np.float16)
    return replace(weight, outliers=Outliers(starts, np.concatenate(lists).astype(np.int32), values))


def buffer(name: str, width: int, *, logits_rows: bool = False) -> Buffer:
    return Buffer(name, width, logits_rows=logits_rows)


def program(
    ops: Sequence[Op],
    weights: Sequence[Weight],
    result: Buffer,
    *,
    kv_heads: int = 1,
    head_dim: int = 16,
    context: int = 4096,
) -> Program:
    """``Embed`` of ``X`` into ``buffer("x", width)``, then ``ops``; ``result`` becomes the logits."""
    table = next(weight for weight in weights if weight.name == X)
    head: list[Op] = [Embed(buffer("x", table.shape[1]), X), *ops]
    if not result.logits_rows:
        taken = buffer("taken", result.width, logits_rows=True)
        head.append(TakeRows(taken, result))
        result = taken
    specs = {weight.name: WeightSpec(weight.name, weight.shape, len(weight.shape) == 2) for weight in weights}
    group = CacheGroup((HeadsCache(1, kv_heads, head_dim),))
    return Program("test", (*head, Logits(result)), specs, (group,), result.width, table.shape[1], context)


def named(weights: Sequence[Weight]) -> dict[str, Weight]:
    return {weight.name: weight for weight in weights}


def rows_step(rows: Sequence[int], *, want_logits: bool = True) -> StepInputs:
    """Each row is a sequence of its own with no past, on the null page: for ops that do not attend."""
    count = len(rows)
    return StepInputs(
        tokens=np.array(rows, np.int32),
        starts=np.arange(count + 1, dtype=np.int32),
        contexts=np.zeros(count, np.int32),
        slots=np.arange(count, dtype=np.int32),
        page_tables=(np.zeros((count, 1), np.int32),),
        logits_rows=np.arange(count, dtype=np.int32),
        want_logits=want_logits,
    )


@dataclass(frozen=True)
class Part:
    """Rows of one sequence: table rows ``tokens`` from position ``context``, cache in ``pages``."""

    tokens: Sequence[int]
    context: int
    pages: Sequence[int]


def step(*parts: Part, logits_rows: Sequence[int] | None = None) -> StepInputs:
    lengths = [len(part.tokens) for part in parts]
    pages = np.zeros((len(parts), 64), np.int32)
    for row, part in zip(pages, parts, strict=True):
        row[: len(part.pages)] = part.pages
    rows = range(sum(lengths)) if logits_rows is None else logits_rows
    return StepInputs(
        tokens=np.array([token for part in parts for token in part.tokens], np.int32),
        starts=np.cumsum([0, *lengths], dtype=np.int32),
        contexts=np.array([part.context for part in parts], np.int32),
        slots=np.arange(len(parts), dtype=np.int32),
        page_tables=(pages,),
        logits_rows=np.array(rows, np.int32),
        want_logits=True,
    )
