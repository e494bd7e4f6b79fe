"""Rewrites a program for the CPU executor: neighbouring ops become one, and buffers share memory.

Fusion never changes what is computed, not even a rounding; it saves passes over memory and barriers between threads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trimaran.kernels.dataflow import inputs, readers_of
from trimaran.kernels.program import (
    Activation,
    Add,
    Buffer,
    Experts,
    Glu,
    Linear,
    Logits,
    Op,
    Program,
    RmsNorm,
    TakeRows,
)
from trimaran.kernels.taken_rows import take_rows_early

Epilogue = Literal["store", "add", "swiglu", "geglu", "logits"]
GATED: dict[Activation, Literal["swiglu", "geglu"]] = {"silu": "swiglu", "gelu_tanh": "geglu"}


@dataclass(frozen=True)
class FusedLinear:
    """``out = epilogue(norm(x[gathered rows]) @ weight.T + bias)``; ``residual``'s rows may be gathered too.

    ========  ===================================================================
    store     ``out = y``
    add       ``out = residual + y``
    swiglu    ``out = silu(gate) * up`` with ``y = [gate | up]``
    geglu     ``out = gelu_tanh(gate) * up``
    logits    ``y`` is the step's result; ``out`` is only its shape
    ========  ===================================================================
    """

    out: Buffer
    x: Buffer
    weight: str
    bias: str | None = None
    norm: RmsNorm | None = None
    gather: bool = False
    epilogue: Epilogue = "store"
    residual: Buffer | None = None
    gather_residual: bool = False
    wide: bool = False

    def same_input(self, other: "FusedLinear") -> bool:
        """Whether both multiply the same rows, prepared in the same way."""
        return (self.x, self.norm, self.gather, self.wide) == (other.x, other.norm, other.gather, other.wide)


@dataclass(frozen=True)
class FusedExperts:
    """``out = residual + experts(norm(x))``."""

    out: Buffer
    x: Buffer
    routes: Buffer
    op: Experts
    norm: RmsNorm | None
    residual: Buffer | None


Lowered = Op | FusedLinear | FusedExperts


def reads(op: Lowered) -> list[Buffer]:
    """The buffers that an op reads."""
    return list(inputs(op).values())


def lower(program: Program) -> list[Lowered]:
    """The program's ops with every fusion applied that its shape allows; an op that fits none stays as it is."""
    ops = take_rows_early(program.ops)
    graph = _Graph(ops)
    lowered: list[Lowered] = []
    for op in ops:
        match op:
            case Linear() | Experts() if graph.tail(op) is None:
                lowered.append(graph.fuse(op, None))
            case Linear() | Experts():
                pass  # comes with its tail, when all that the tail reads is there
            case Add() | Glu() | Logits() if (head := graph.head(op)) is not None:
                lowered.append(graph.fuse(head, op))
            case RmsNorm() | TakeRows() if graph.folds(op):
                pass  # the linears that read it do it themselves
            case _:
                lowered.append(op)
    return lowered


Product = Linear | Experts


class _Graph:
    """Who writes and who reads each buffer: a buffer has one writer."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._writer: dict[Buffer, Op] = {op.out: op for op in ops if not isinstance(op, Logits)}
        self._readers = readers_of(ops)

    def tail(self, product: Product) -> Op | None:
        """The op that becomes ``product``'s epilogue."""
        match self._readers.get(product.out):
            case [Add() as add] if add.a != add.b and self._first_product(add) is product:
                return add
            case [Glu() | Logits() as only] if isinstance(product, Linear):
                return only
        return None

    def head(self, op: Add | Glu | Logits) -> Product | None:
        """The product whose epilogue ``op`` becomes."""
        for buffer in reads(op):
            writer = self._writer.get(buffer)
            if isinstance(writer, Linear | Experts) and self.tail(writer) is op:
                return writer
        return None

    def _first_product(self, add: Add) -> Product | None:
        """Of a sum of two products only the first is fused."""
        for buffer in (add.a, add.b):
            writer = self._writer.get(buffer)
            if isinstance(writer, Linear | Experts) and len(self._readers[buffer]) == 1:
                return writer
        return None

    def folds(self, op: RmsNorm | TakeRows) -> bool:
        """Whether all that read ``op``'s result are products, which then prepare their input themselves, or it is the
        residual of a linear."""
        readers = self._readers.get(op.out, [])
        if isinstance(op, TakeRows) and len(readers) == 1 and isinstance(add := readers[0], Add):
            return isinstance(head := self.head(add), Linear) and head.out != op.out
        if isinstance(op, TakeRows) and len(readers) == 1 and isinstance(readers[0], RmsNorm):
            return self.folds(readers[0])
        products = Linear if isinstance(op, TakeRows) else Linear | Experts
        return bool(readers) and all(isinstance(reader, products) for reader in readers)

    def fuse(self, product: Product, tail: Op | None) -> FusedLinear | FusedExperts:
        x, norm, gather = product.x, None, False
        writer = self._writer.get(x)
        if isinstance(writer, RmsNorm) and self.folds(writer):
            norm, x = writer, writer.x
            writer = self._writer.get(x)
        if isinstance(writer, TakeRows) and self.folds(writer):
            gather, x = True, writer.x
        residual, gather_residual = None, False
        if isinstance(tail, Add):
            residual = tail.b if tail.a == product.out else tail.a
            writer = self._writer.get(residual)
            if isinstance(writer, TakeRows) and self.folds(writer):
                gather_residual, residual = True, writer.x
        if isinstance(product, Experts):
            assert not gather, product
            return FusedExperts(
                tail.out if isinstance(tail, Add) else product.out, x, product.routes, product, norm, residual
            )
        plain = FusedLinear(product.out, x, product.weight, product.bias, norm, gather, wide=product.wide)
        match tail:
            case Add():
                return replace(plain, out=tail.out, epilogue="add", residual=residual, gather_residual=gather_residual)
            case Glu():
                return replace(plain, out=tail.out, epilogue=GATED[tail.activation])
            case Logits():
                return replace(plain, epilogue="logits")
        return plain


@dataclass(frozen=True)
class Slots:
    """Memory of a lowered program: a slot for each buffer that is written. Buffers of one slot have one shape."""

    of: Mapping[Buffer, int]
    shapes: tuple[tuple[int, bool], ...]  # width, logits rows


def plan_slots(ops: Sequence[Lowered]) -> Slots:
    """Gives buffers that do not live at the same time the same slot; a residual sum is written in place.

    Only equal widths share: columns from the width up to the stride must stay zero.
    """
    last = {buffer: i for i, op in enumerate(ops) for buffer in reads(op)}
    of: dict[Buffer, int] = {}
    shapes: list[tuple[int, bool]] = []
    free: list[int] = []
    for i, op in enumerate(ops):
        dying = [buffer for buffer in set(reads(op)) if last[buffer] == i]
        if not (isinstance(op, Logits) or (isinstance(op, FusedLinear) and op.epilogue == "logits")):
            shape = (op.out.width, op.out.logits_rows)
            heir = _in_place(op)
            if heir is not None and heir in dying:
                dying.remove(heir)
                of[op.out] = of[heir]
            else:
                of[op.out] = next((slot for slot in free if shapes[slot] == shape), len(shapes))
                if of[op.out] == len(shapes):
                    shapes.append(shape)
                else:
                    free.remove(of[op.out])
            if op.out not in last:
                dying.append(op.out)
        free.extend(of[buffer] for buffer in dying)
    return Slots(of, tuple(shapes))


def _in_place(op: Lowered) -> Buffer | None:
    """The input that ``op`` may overwrite: it reads each element just before it writes it, and nowhere else."""
    match op:
        case Add() if op.a != op.b:
            return op.a
        case FusedLinear() if op.residual is not None and op.residual != op.x and not op.gather_residual:
            return op.residual
    return None
