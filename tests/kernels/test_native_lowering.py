"""Lowering: which ops become one, which stay, and who shares memory."""

import itertools

import numpy as np

from trimaran.kernels.native_lowering import FusedLinear, lower, plan_slots, reads
from trimaran.kernels.program import Add, Attention, Embed, Glu, Linear, Logits, Op, RmsNorm, TakeRows

from .single_op import buffer, fp32, program
from .tiny import program as llama


def lowered(*ops: Op) -> list[object]:
    return list(lower(program(ops, [fp32("x", np.zeros((4, 64)))], ops[-1].out)))  # type: ignore[union-attr]


X, H, Y, Z, W = (buffer(name, 64) for name in "xhyzw")


def test_a_llama_layer_is_five_ops() -> None:
    ops = lower(llama())
    kinds = [(type(op).__name__, getattr(op, "epilogue", "")) for op in ops]
    layer = [
        ("FusedLinear", "store"),
        ("Attention", ""),
        ("FusedLinear", "add"),
        ("FusedLinear", "swiglu"),
        ("FusedLinear", "add"),
    ]
    assert kinds == [("Embed", ""), *layer, *layer, ("FusedLinear", "logits")]
    norms = [op.norm is not None for op in ops if isinstance(op, FusedLinear)]
    assert norms == [True, False, True, False, True, False, True, False, True]
    last = ops[-1]
    assert isinstance(last, FusedLinear)
    assert last.x.logits_rows


def test_a_norm_that_something_else_reads_stays() -> None:
    _, norm, linear, *_ = lowered(RmsNorm(H, X, "n", 1e-5), Linear(Y, H, "w"), Add(Z, H, Y))
    assert isinstance(norm, RmsNorm)
    assert linear == FusedLinear(Z, H, "w", epilogue="add", residual=H)


def test_linears_that_share_a_norm_each_take_it() -> None:
    q, k, v = buffer("q", 64), buffer("k", 64), buffer("v", 64)
    ops = lowered(
        RmsNorm(H, X, "n", 1e-5), Linear(q, H, "q"), Linear(k, H, "k"), Linear(v, H, "v"), Add(Y, q, k), Add(Z, Y, v)
    )
    fused = [op for op in ops if isinstance(op, FusedLinear)]
    assert all(op.norm is not None and op.x == X for op in fused)
    assert all(a.same_input(b) for a, b in itertools.pairwise(fused))


def test_of_a_sum_of_two_linears_one_is_fused() -> None:
    ops = lowered(Linear(H, X, "a"), Linear(Y, X, "b"), Add(Z, H, Y))
    assert ops[1:3] == [FusedLinear(Y, X, "b"), FusedLinear(Z, X, "a", epilogue="add", residual=Y)]


def test_a_linear_that_is_read_twice_is_stored() -> None:
    ops = lowered(Linear(Y, X, "a"), Add(Z, X, Y), Add(W, Z, Y))
    assert [type(op) for op in ops[1:4]] == [FusedLinear, Add, Add]
    assert lowered(Linear(Y, X, "a"), Add(Z, Y, Y))[1:3] == [FusedLinear(Y, X, "a"), Add(Z, Y, Y)]


def test_ops_without_a_linear_stay() -> None:
    half = buffer("half", 32)
    kinds = [type(op) for op in lowered(RmsNorm(H, X, "n", 1e-5), Add(Y, H, X), Glu(half, Y))]
    assert kinds == [Embed, RmsNorm, Add, Glu, TakeRows, Logits]


def test_the_residual_stream_of_a_llama_has_one_slot_and_one_for_rows_that_need_logits() -> None:
    ops = lower(llama())
    slots = plan_slots(ops)
    embed = ops[0]
    assert isinstance(embed, Embed)
    for taken in (False, True):
        sums = [op.out for op in ops if isinstance(op, FusedLinear) and op.epilogue == "add"]
        stream = {slots.of[out] for out in sums if out.logits_rows == taken}
        assert len(stream) == 1
        assert (stream == {slots.of[embed.out]}) != taken


def test_no_buffer_is_overwritten_while_somebody_still_reads_it() -> None:
    """Runs the plan with buffers in place of values: every op must find in a slot what it reads."""
    chains: list[list[Op]] = [
        [RmsNorm(H, X, "n", 1e-5), Linear(Y, H, "w"), Add(Z, H, Y), Add(W, X, Z)],
        [Linear(Y, X, "w"), Add(Z, X, Y), Linear(W, Z, "v"), Add(H, Z, W)],
        [Add(Y, X, X), Add(Z, Y, X), Add(W, Y, Z), Add(H, W, X)],
    ]
    programs = [lower(llama())] + [lowered(*chain) for chain in chains]  # type: ignore[list-item]
    for ops in programs:
        slots, holds = plan_slots(ops), {}
        for op in ops:
            for read in reads(op):
                assert holds[slots.of[read]] == read, op
            if not isinstance(op, Logits) and op.out in slots.of:
                assert slots.shapes[slots.of[op.out]] == (op.out.width, op.out.logits_rows)
                holds[slots.of[op.out]] = op.out


def test_a_residual_that_is_also_the_input_is_not_overwritten() -> None:
    ops = lowered(Linear(Y, X, "w"), Add(Z, X, Y))
    slots = plan_slots(ops)  # type: ignore[arg-type]
    assert slots.of[Z] != slots.of[X]


def test_attention_does_not_write_where_it_reads() -> None:
    ops = lower(llama())
    slots = plan_slots(ops)
    for op in ops:
        if isinstance(op, Attention):
            assert slots.of[op.out] != slots.of[op.qkv]
