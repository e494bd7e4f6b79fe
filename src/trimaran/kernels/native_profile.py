"""Where the time of the CPU executor goes: the table that ``TRIMARAN_PROFILE=1`` prints to stderr at ``close``.

The core only times each op of a step (on the calling thread, waiting for the others included). Names, bytes and
operations are worked out here, from the program and the steps' shapes. They are what an op has to move and compute at
least, not what it does: a step reads each of its weights once (of experts as many as rows are likely to go to) and each
cached token of a sequence once, and a multiplication and an addition are two operations. "floor" is the share of the
time that the machine's bandwidth, for a step's bytes, and its peaks allow at best; both are measured when the table is
made.

Only on quiet cores: where another job takes the calling thread's core, the op that it stood in is charged for the
pause, and ops that the other threads finished meanwhile look free.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import ActivationFormat, IndexCache, LatentCache
from trimaran.kernels.bounds import Bounds
from trimaran.kernels.native_lowering import FusedExperts, FusedLinear, Lowered, lower
from trimaran.kernels.prefill_ops import programs_of
from trimaran.kernels.program import (
    Add,
    Attention,
    Embed,
    Experts,
    Gelu,
    Glu,
    HeadLinear,
    LatentAttention,
    LayerNorm,
    Linear,
    Logits,
    MeanRows,
    Program,
    RmsNorm,
    Route,
    SelectTokens,
    TakeRows,
    Tanh,
)
from trimaran.kernels.step import ExecutorOptions, StepInputs
from trimaran.kernels.weights import Weight, least_bytes, touched_experts

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

PHASES = ("1 row", "2 to 64 rows", "more than 64 rows")
HEADER = ("op", "calls", "us/step", "share", "MB/step", "GB/s", "MOP/step", "GOP/s", "floor")


class _Reading(NamedTuple):
    """Who reads a cache, and how much of it."""

    most: int | None  # tokens of a row
    taken: bool  # rows that need logits alone


@dataclass(frozen=True)
class _Cost:
    """What an op reads and computes: bytes and operations by what they grow with."""

    kind: str
    logits_rows: bool = False  # its rows are those that need logits: without any, it is not called
    bytes_of_call: int = 0
    bytes_of_row: int = 0
    bytes_of_expert: int = 0
    experts: tuple[int, int] = (0, 1)  # how many a row goes to, of how many
    bytes_of_token: int = 0  # in the cache
    ops_of_row: int = 0
    ops_of_score: int = 0
    int8: bool = False  # its operations are of int8
    most: int | None = None  # tokens that a row reads of its cache
    taken: bool = False  # only rows that need logits read it

    @property
    def reading(self) -> _Reading:
        return _Reading(self.most, self.taken)


@dataclass
class _Seen:
    """What rows read of their caches, if at most ``most`` tokens each."""

    most: int | None
    tokens: int = 0  # that are read at least, by any row
    scores: int = 0  # pairs of a row and a token that it reads

    def add(self, counts: Int64, contexts: Int64) -> None:
        ends = counts + contexts
        excess = np.zeros_like(ends) if self.most is None else np.maximum(ends - self.most, 0)
        beyond = np.minimum(excess, counts)  # rows that see more than they read
        self.tokens += int((ends - excess)[counts > 0].sum())
        self.scores += int((counts * contexts + counts * (counts + 1) // 2).sum())
        self.scores -= int((beyond * excess - beyond * (beyond - 1) // 2).sum())


@dataclass
class _Phase:
    """What the steps of one phase add up to."""

    seconds: Float64  # by op
    steps: int = 0
    rows: int = 0
    steps_of: Counter[int] = field(default_factory=Counter)  # by rows
    logits_of: Counter[int] = field(default_factory=Counter)  # steps by rows that need logits, if there are any
    seen: dict[_Reading, _Seen] = field(default_factory=dict)

    def add(self, step: StepInputs, seconds: Float64) -> None:
        counts = np.diff(step.starts).astype(np.int64)
        contexts = step.contexts.astype(np.int64)
        self.seconds += seconds
        self.steps += 1
        self.rows += len(step.tokens)
        self.steps_of[len(step.tokens)] += 1
        if len(step.logits_rows):
            self.logits_of[len(step.logits_rows)] += 1
        # Rows that need logits are counted as the last of their sequence.
        taken = np.diff(np.searchsorted(step.logits_rows, step.starts)).astype(np.int64)
        for reading, seen in self.seen.items():
            if reading.taken:
                seen.add(taken, np.where(taken > 0, contexts + counts - taken, 0))
            else:
                seen.add(counts, contexts)

    def touched(self, cost: _Cost) -> float:
        """Experts that the steps are expected to read, were all alike to their rows."""
        top_k, experts = cost.experts
        steps_of = self.logits_of if cost.logits_rows else self.steps_of
        return sum(steps * touched_experts(experts, top_k, rows) for rows, steps in steps_of.items())


@dataclass
class _Line:
    """One line of the table: all ops of a kind, in all steps of a phase."""

    calls: int = 0
    seconds: float = 0.0
    bytes: int = 0
    int8_ops: int = 0
    fp32_ops: int = 0

    @property
    def operations(self) -> int:
        return self.int8_ops + self.fp32_ops

    def add(self, cost: _Cost, phase: _Phase, seconds: float) -> None:
        calls = phase.logits_of.total() if cost.logits_rows else phase.steps
        rows = sum(n * steps for n, steps in phase.logits_of.items()) if cost.logits_rows else phase.rows
        seen = phase.seen[cost.reading]
        self.calls += calls
        self.seconds += seconds
        self.bytes += cost.bytes_of_call * calls + cost.bytes_of_row * rows + cost.bytes_of_token * seen.tokens
        self.bytes += round(cost.bytes_of_expert * phase.touched(cost))
        operations = cost.ops_of_row * rows + cost.ops_of_score * seen.scores
        if cost.int8:
            self.int8_ops += operations
        else:
            self.fp32_ops += operations

    def plus(self, other: "_Line") -> "_Line":
        return _Line(
            self.calls + other.calls,
            self.seconds + other.seconds,
            self.bytes + other.bytes,
            self.int8_ops + other.int8_ops,
            self.fp32_ops + other.fp32_ops,
        )

    def cells(self, kind: str, steps: int, all_: "_Line", bounds: Bounds) -> tuple[str, ...]:
        moved = (_figure(self.bytes / steps / 1e6), _rate(self.bytes, self.seconds)) if self.bytes else ("", "")
        done = (_figure(self.operations / steps / 1e6), _rate(self.operations, self.seconds))
        time = (f"{self.seconds / steps * 1e6:.1f}", f"{self.seconds / all_.seconds:.1%}" if all_.seconds else "")
        floor = bounds.seconds(self.bytes, self.int8_ops, self.fp32_ops, footprint=all_.bytes // steps)
        share = f"{floor / self.seconds:.0%}" if floor and self.seconds else ""
        return kind, str(self.calls), *time, *moved, *(done if self.operations else ("", "")), share


class Profile:
    """Adds up the steps of one executor. ``seconds`` is the core's view of the last step's time by op."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: ExecutorOptions,
        bounds: Bounds,
        seconds: Float64,
        of: str = "",
    ) -> None:
        """``of`` says which rows these are, where there are two profiles."""
        self._of = of
        self._costs = [_cost(op, weights, options) for op in lower(program)]
        self._bounds = bounds
        self._seconds = seconds
        readings = {cost.reading for cost in self._costs}
        self._phases = [
            _Phase(np.zeros(len(self._costs)), seen={reading: _Seen(reading.most) for reading in readings})
            for _ in PHASES
        ]
        assert len(seconds) == len(self._costs), "the core has other ops than the program"

    def record(self, step: StepInputs) -> None:
        """Counts ``step``, which the core has just run; a step without rows has no phase."""
        rows = len(step.tokens)
        if rows:
            self._phases[0 if rows == 1 else 1 if rows <= 64 else 2].add(step, self._seconds)

    def table(self) -> str:
        """The text to print: of each phase that had steps a line per kind of op, in program order, and their sum."""
        phases = zip(PHASES, self._phases, strict=True)
        return "".join(self._part(title, phase) for title, phase in phases if phase.steps)

    def _part(self, title: str, phase: _Phase) -> str:
        lines: dict[str, _Line] = {}
        for cost, seconds in zip(self._costs, phase.seconds.tolist(), strict=True):
            lines.setdefault(cost.kind, _Line()).add(cost, phase, seconds)
        everything = _Line()
        for line in lines.values():
            everything = everything.plus(line)
        lines["all"] = everything
        cells = [HEADER, *(line.cells(kind, phase.steps, everything, self._bounds) for kind, line in lines.items())]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        average = f"{phase.rows / phase.steps:.1f} rows on average"
        text = f"profile{self._of}, steps of {title}: {phase.steps} steps, {average}\n"
        for first, *others in cells:
            row = [first.ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(others, widths[1:], strict=True))]
            text += "  ".join(row).rstrip() + "\n"
        return text + "\n"


def profiles_of(
    program: Program,
    weights: Mapping[str, Weight],
    options: ExecutorOptions,
    bounds: Bounds,
    seconds: Float64,
) -> tuple[Profile, ...]:
    """A profile for each list of the program's ops, of which ``seconds`` has all, one list after the other."""
    if not program.prefill_ops:
        return (Profile(program, weights, options, bounds, seconds),)
    decode, prefill = programs_of(program)
    first = len(lower(decode))
    return (
        Profile(decode, weights, options, bounds, seconds[:first], " of generated tokens"),
        Profile(prefill, weights, options, bounds, seconds[first:], " of prompts"),
    )


def _cost(op: Lowered, weights: Mapping[str, Weight], options: ExecutorOptions) -> _Cost:
    match op:
        case FusedLinear():
            weight = weights[op.weight]
            outputs, inputs = weight.shape
            int8 = weight.fmt.integer and options.activations is ActivationFormat.INT8
            return _Cost(
                op.weight.rpartition(".")[2],
                op.gather or op.x.logits_rows,
                bytes_of_call=least_bytes(weight, head=int8 and op.epilogue == "logits"),
                ops_of_row=2 * outputs * inputs,
                int8=int8,
            )
        case Embed():
            table = weights[op.weight]
            return _Cost("embed", bytes_of_row=table.fmt.row_bytes(table.shape[1]))
        case Attention():
            return _Cost(
                "attention",
                bytes_of_token=op.kv_heads * options.kv_format.token_bytes(op.head_dim),
                ops_of_score=4 * op.heads * op.head_dim,
                int8=options.kv_format.integer,
                taken=op.out.logits_rows,
            )
        case RmsNorm():
            return _Cost("rms_norm", op.out.logits_rows)
        case LayerNorm():
            return _Cost("layer_norm", op.out.logits_rows)
        case Gelu():
            return _Cost("gelu", op.out.logits_rows)
        case Tanh():
            return _Cost("tanh", op.out.logits_rows)
        case MeanRows():
            return _Cost("mean_rows", logits_rows=True)
        case Glu():
            return _Cost("swiglu", op.out.logits_rows)
        case Add():
            return _Cost("add", op.out.logits_rows)
        case TakeRows():
            return _Cost("take_rows", logits_rows=True)
        case Logits():
            return _Cost("logits", logits_rows=True)
        case Route():
            return _Cost("route", op.out.logits_rows)
        case FusedExperts():
            matrices = [weights[op.op.gate_up], weights[op.op.down]]
            top_k, count = op.routes.width // 2, op.op.experts
            return _Cost(
                "experts",
                op.x.logits_rows,
                bytes_of_expert=sum(least_bytes(weight, head=False) for weight in matrices) // count,
                experts=(top_k, count),
                ops_of_row=sum(2 * rows * cols * top_k // count for rows, cols in (m.shape for m in matrices)),
                int8=matrices[0].fmt.integer and options.activations is ActivationFormat.INT8,
            )
        case HeadLinear():
            weight = weights[op.weight]
            return _Cost(
                op.weight.rpartition(".")[2],
                op.x.logits_rows,
                bytes_of_call=least_bytes(weight, head=False),
                ops_of_row=2 * weight.shape[0] * weight.shape[1],
            )
        case LatentAttention():
            cache = LatentCache(1, op.latent, op.rope.dims)
            return _Cost(
                "latent_attention",
                bytes_of_token=cache.token_bytes(options.kv_format),
                ops_of_score=2 * op.heads * (2 * op.latent + op.rope.dims),
                most=None if op.selected is None else op.selected.width,
            )
        case SelectTokens():
            return _Cost(
                "indexer",
                bytes_of_token=IndexCache(1, op.dim).token_bytes(options.kv_format),
                ops_of_score=2 * op.heads * op.dim,
            )
        case Linear() | Experts():
            raise AssertionError("lowering leaves no plain product")


def _figure(value: float) -> str:
    return f"{value:,.3f}" if value < 1 else f"{value:,.1f}"


def _rate(amount: int, seconds: float) -> str:
    return f"{amount / seconds / 1e9:,.1f}" if seconds else ""
