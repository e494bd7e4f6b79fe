"""Behind the last attention only the rows that need logits are computed, and nobody can tell."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.formats import WeightFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.native_lowering import FusedLinear, lower
from trimaran.kernels.program import Add, Attention, Embed, Linear, Logits, RmsNorm, TakeRows
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.step import ExecutorOptions
from trimaran.kernels.taken_rows import take_rows_early

from .single_op import buffer, fp32
from .single_op import program as single
from .tiny import Rows, program, random_tokens, random_weights, step

OPTIONS = ExecutorOptions(num_pages=60, max_rows=200, max_sequences=200, threads=2)
PROMPT = random_tokens(150)
PAGES = [7, 3, 12, 21, 5, 9, 30, 31, 32, 33]


def test_the_last_layer_of_a_llama_sees_taken_rows_behind_its_keys_and_values() -> None:
    ops = take_rows_early(program().ops)
    wide = [op.out for op in ops if not isinstance(op, Logits) and not op.out.logits_rows]
    assert [b.name.split(".")[0] for b in wide].count("attention") == 1  # of two layers the first
    attention = [op for op in ops if isinstance(op, Attention)]
    assert [op.out.logits_rows for op in attention] == [False, True]
    behind = ops[ops.index(attention[-1]) + 1 :]
    assert all(isinstance(op, Logits) or op.out.logits_rows for op in behind)
    (take,) = [op for op in ops if isinstance(op, TakeRows)]  # of the stream that the layer's result is added to
    assert any(isinstance(op, Add) and take.out in (op.a, op.b) for op in behind)
    norms = [op for op in ops if isinstance(op, RmsNorm)]
    assert [norm.out.logits_rows for norm in norms] == [False, False, False, True, True]


def test_lowered_the_residual_is_gathered_in_the_sum() -> None:
    ops = lower(program())
    assert not any(isinstance(op, TakeRows) for op in ops)
    assert [op.gather_residual for op in ops if isinstance(op, FusedLinear) and op.epilogue == "add"] == [
        False,
        False,
        True,
        False,
    ]


def test_a_result_that_attention_reads_too_keeps_all_rows() -> None:
    made = program()
    last = next(op for op in reversed(made.ops) if isinstance(op, Attention))
    ops = take_rows_early(made.ops)
    (qkv,) = [op for op in ops if isinstance(op, Linear) and op.out == last.qkv]
    assert not qkv.out.logits_rows
    assert not qkv.x.logits_rows


def test_where_rows_see_those_behind_them_attention_keeps_all() -> None:
    ops = tuple(replace(op, causal=False) if isinstance(op, Attention) else op for op in program().ops)
    narrow = take_rows_early(ops)
    assert [op.out.logits_rows for op in narrow if isinstance(op, Attention)] == [False, False]
    output = narrow[[isinstance(op, Attention) for op in narrow].index(True) :]
    assert any(isinstance(op, Linear) and op.out.logits_rows for op in output)


def test_programs_without_attention_stay() -> None:
    x, y = buffer("x", 64), buffer("y", 64)
    made = single([RmsNorm(y, x, "n", 1e-5)], [fp32("x", np.zeros((4, 64)))], y)
    assert isinstance(made.ops[0], Embed)
    assert take_rows_early(made.ops) == made.ops


def test_programs_that_take_rows_twice_stay() -> None:
    ops = program().ops
    take = next(op for op in ops if isinstance(op, TakeRows))
    twice = (*ops[:-1], replace(take, out=replace(take.out, name="again")), ops[-1])
    assert take_rows_early(twice) == twice


def test_the_reference_gives_the_same_bits() -> None:
    made = program()
    weights = random_weights(made)
    narrow = replace(made, ops=take_rows_early(made.ops))
    wanted = step(Rows(PROMPT[:40], 0, PAGES), Rows(PROMPT[:7], 0, [50]), logits_rows=[3, 4, 39, 46])
    expected = ReferenceExecutor(made, weights, OPTIONS).run(wanted).logits
    out = ReferenceExecutor(narrow, weights, OPTIONS).run(wanted).logits
    assert expected is not None
    assert out is not None
    assert out.tobytes() == expected.tobytes()


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 149), max_size=5).map(sorted),
    data=st.data(),
    threads=st.integers(1, 3),
    fmt=st.sampled_from([WeightFormat.INT4Z, WeightFormat.INT8, WeightFormat.BF16]),
)
def test_any_rows_of_any_chunks(cuts: list[int], data: st.DataObject, threads: int, fmt: WeightFormat) -> None:
    """Also rows whose logits nobody wanted have left their keys and values in the pages."""
    weights = random_weights(program(), fmt)
    everything = NativeExecutor(program(), weights, OPTIONS).run(step(Rows(PROMPT, 0, PAGES)))
    assert everything.logits is not None
    whole = everything.logits.copy()
    runner = NativeExecutor(program(), weights, replace(OPTIONS, threads=threads))
    at = 0
    for end in [*cuts, len(PROMPT)]:
        other = Rows(random_tokens(end % 5 + 1, end), 0, [50])
        first = len(other.tokens)
        rows = sorted(data.draw(st.sets(st.integers(0, first + end - at - 1), max_size=9)))
        out = runner.run(step(other, Rows(PROMPT[at:end], at, PAGES), logits_rows=rows))
        mine = [i for i, row in enumerate(rows) if row >= first]
        if mine:
            assert out.logits is not None
            assert out.logits[mine].tobytes() == whole[[rows[i] - first + at for i in mine]].tobytes()
        at = end
    runner.close()
