"""The physical floor of a step: bytes that must be read over bandwidth, or operations over the unit's peak.

A step cannot be faster than the larger of the two. Left out on purpose: unpacking, norms, softmax, sampling, barriers;
what they cost is what the share of the floor shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.formats import ActivationFormat, KVFormat
from trimaran.bench.machine import Machine
from trimaran.kernels.program import Attention, Experts, Linear, Op, Program
from trimaran.kernels.taken_rows import take_rows_early
from trimaran.kernels.weights import Weight, least_bytes, touched_experts


@dataclass(frozen=True)
class Part:
    """Consecutive tokens of one sequence in a step: ``rows`` of them after ``context`` earlier ones."""

    context: int
    rows: int = 1


@dataclass(frozen=True)
class Cost:
    """What a step cannot do without."""

    bytes: int
    int8_ops: int
    fp32_ops: int

    def seconds(self, machine: Machine) -> float:
        """The floor on ``machine``: its bandwidth for this footprint, its peaks for these operations."""
        return machine.seconds(self.bytes, self.int8_ops, self.fp32_ops)


@dataclass(frozen=True)
class ExpertBytes:
    """The experts of one layer: bytes of each, how many there are, and how many a row goes to."""

    of_each: int
    experts: int
    top_k: int


@dataclass(frozen=True)
class Reading:
    """What attention costs in the layers of one cache group: they read everything, or the last ``window`` tokens."""

    kv_bytes: int  # of one token
    pair_ops: int  # for one query and one key, all heads and layers
    window: int | None = None
    taken_pair_ops: int = 0  # as pair_ops, of layers in which only rows that need logits attend

    def tokens(self, part: Part) -> int:
        """Tokens whose keys and values ``part`` reads, its own included."""
        before = part.context if self.window is None else min(part.context, self.window - 1)
        return before + part.rows

    def pairs(self, part: Part) -> int:
        """Queries times the keys that they see; row i sees ``context + i + 1`` tokens, or the window."""
        growing = part.rows if self.window is None else min(part.rows, max(0, self.window - part.context))
        pairs = growing * part.context + growing * (growing + 1) // 2
        return pairs if self.window is None else pairs + (part.rows - growing) * self.window


@dataclass(frozen=True)
class Work:
    """What a model does per row, counted once from its program."""

    weight_bytes: int  # read once a step that chooses greedily, experts apart
    int8_ops: int  # of every row
    fp32_ops: int
    head_int8_ops: int  # of every row that needs logits, beside those
    head_fp32_ops: int
    readings: tuple[Reading, ...]  # of each cache group
    pair_int8: bool = False  # pages of integers are multiplied as they are
    experts: tuple[ExpertBytes, ...] = ()  # of each layer that has some

    def weights_read(self, rows: int) -> int:
        """Bytes of the weights that a step of ``rows`` rows has to read: of experts those that rows are likely to go
        to, were all alike to them. Rows that resemble each other go to fewer."""
        return self.weight_bytes + round(
            sum(layer.of_each * touched_experts(layer.experts, layer.top_k, rows) for layer in self.experts)
        )

    def cost(self, parts: Sequence[Part], logits_rows: int) -> Cost:
        """The cost of one step: each sequence's keys and values are read once, attention is causal."""
        rows = sum(part.rows for part in parts)
        each = [(reading, part) for reading in self.readings for part in parts]
        attention = sum(reading.pairs(part) * reading.pair_ops for reading, part in each)
        of_taken = sum(reading.tokens(part) * reading.taken_pair_ops for reading, part in each)
        attention += of_taken * logits_rows // len(parts)  # a row that needs logits is its part's last one
        return Cost(
            bytes=self.weights_read(rows) + sum(reading.tokens(part) * reading.kv_bytes for reading, part in each),
            int8_ops=rows * self.int8_ops + logits_rows * self.head_int8_ops + self.pair_int8 * attention,
            fp32_ops=rows * self.fp32_ops + logits_rows * self.head_fp32_ops + (not self.pair_int8) * attention,
        )


def count_work(
    program: Program, weights: Mapping[str, Weight], kv_format: KVFormat, activations: ActivationFormat
) -> Work:
    """Counts ``program``'s matrices and attention; an embedding is read by row and therefore costs nothing.

    What the last layer computes behind its keys and values, only rows that need logits cannot do without.
    """
    linears = [op for op in program.ops if isinstance(op, Linear)]
    needed = take_rows_early(program.ops)
    experts = [op for op in needed if isinstance(op, Experts)]

    def is_int8(weight: str) -> bool:
        return weights[weight].fmt.integer and activations is ActivationFormat.INT8

    ops = {(int8, head): 0 for int8 in (False, True) for head in (False, True)}
    for op in needed:
        if isinstance(op, Linear):
            ops[is_int8(op.weight), op.x.logits_rows] += 2 * op.x.width * op.out.width
    for layer in experts:
        for weight in (layer.gate_up, layer.down):
            rows, cols = weights[weight].shape
            ops[is_int8(weight), layer.x.logits_rows] += 2 * rows * cols // layer.experts * (layer.routes.width // 2)
    heads = {op.weight: op.x.logits_rows and activations is ActivationFormat.INT8 for op in linears}
    return Work(
        weight_bytes=sum(least_bytes(weights[name], head=head) for name, head in heads.items()),
        int8_ops=ops[True, False],
        fp32_ops=ops[False, False],
        head_int8_ops=ops[True, True],
        head_fp32_ops=ops[False, True],
        readings=tuple(
            Reading(
                group.page_bytes(kv_format, 1),
                _pair_ops(needed, number, taken=False),
                group.window,
                _pair_ops(needed, number, taken=True),
            )
            for number, group in enumerate(program.groups)
        ),
        pair_int8=kv_format.integer,
        experts=tuple(
            ExpertBytes(
                sum(least_bytes(weights[name], head=False) for name in (layer.gate_up, layer.down)) // layer.experts,
                layer.experts,
                layer.routes.width // 2,
            )
            for layer in experts
        ),
    )


def _pair_ops(ops: Sequence[Op], group: int, *, taken: bool) -> int:
    attentions = [op for op in ops if isinstance(op, Attention) and op.group == group]
    return sum(4 * op.heads * op.head_dim for op in attentions if op.out.logits_rows == taken)
