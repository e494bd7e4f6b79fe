"""Leaves out what nobody reads: behind the last attention only the rows that need logits are computed.

A prompt needs the logits of its last row alone. Of the others the last layer gives keys and values to the pages, and
nothing else: its attention, its feed-forward and all that follows need not see them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trimaran.kernels.dataflow import inputs, readers_of
from trimaran.kernels.program import (
    Add,
    Attention,
    Buffer,
    Experts,
    Gelu,
    Glu,
    HeadLinear,
    LatentAttention,
    LayerNorm,
    Linear,
    Logits,
    Op,
    RmsNorm,
    Route,
    TakeRows,
    Tanh,
)

# What makes a row of its result from the same row of its inputs.
_ByRow = Add | Experts | Gelu | Glu | HeadLinear | LayerNorm | Linear | RmsNorm | Route | Tanh


def take_rows_early(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The ops with ``TakeRows`` as far up as attention lets it go; the results are the same bits.

    Programs without attention, or that take rows more than once, stay as they are.
    """
    takes = [op for op in ops if isinstance(op, TakeRows)]
    if len(takes) != 1 or not any(isinstance(op, Attention | LatentAttention) for op in ops):
        return tuple(ops)
    narrow = _read_by_taken_rows(ops, takes[0])
    taken: dict[Buffer, Buffer] = {}  # what holds the taken rows of a buffer
    result: list[Op] = []

    def take(buffer: Buffer) -> Buffer:
        if buffer not in taken and not buffer.logits_rows:
            taken[buffer] = Buffer(f"{buffer.name}, taken", buffer.width, logits_rows=True)
            result.append(TakeRows(taken[buffer], buffer))
        return taken.get(buffer, buffer)

    for op in ops:
        if isinstance(op, TakeRows):
            taken[op.out] = take(op.x)
        elif not isinstance(op, Logits) and op.out in narrow:
            # Attention appends all rows of what it reads to pages, and so reads them all.
            read = {} if isinstance(op, Attention) else {name: take(x) for name, x in inputs(op).items()}
            taken[op.out] = Buffer(f"{op.out.name}, taken", op.out.width, logits_rows=True)
            result.append(_reading(op, read, out=taken[op.out]))
        else:
            result.append(_reading(op, {name: taken.get(x, x) for name, x in inputs(op).items() if x.logits_rows}))
    return tuple(result)


def _read_by_taken_rows(ops: Sequence[Op], take: TakeRows) -> set[Buffer]:
    """Results of which only the taken rows are read: those of ops that can make them one by one."""
    readers = readers_of(ops)
    narrow: set[Buffer] = set()

    def is_narrow(op: Op) -> bool:
        return op is take or (isinstance(op, _ByRow) and op.out in narrow)

    for op in reversed(ops[: ops.index(take)]):
        if (isinstance(op, _ByRow) or (isinstance(op, Attention) and op.causal)) and all(
            map(is_narrow, readers.get(op.out, []))
        ):
            narrow.add(op.out)
    return narrow


def _reading(op: Any, buffers: dict[str, Buffer], **out: Buffer) -> Any:
    """The op with other buffers."""
    return replace(op, **buffers, **out)
