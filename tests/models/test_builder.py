"""The builder names weights, gives every op a buffer of its own, and catches programs that make no sense."""

import pytest

from trimaran.kernels.program import Linear, RmsNorm, RopeSpec, TakeRows
from trimaran.models.builder import Builder
from trimaran.models.config import ModelConfig

CFG = ModelConfig(
    family="llama",
    vocab=50,
    hidden=32,
    intermediate=48,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=8,
    norm_eps=1e-5,
    rope=RopeSpec(10000.0, 8),
    context=64,
    tied=False,
    attention_bias=False,
    bos_id=None,
    eos_ids=frozenset(),
)


def test_ops_and_weights_are_recorded_in_order() -> None:
    b = Builder(CFG)
    x = b.embed("emb")
    with b.layer(0) as w:
        h = b.rms_norm(x, w["norm"])
        x = b.add(x, b.attention(b.linear(h, w["attn.qkv"], 64, bias=True)))
    b.logits(b.linear(b.take_rows(x), "head", 50))
    program = b.finish()
    assert [type(op).__name__ for op in program.ops] == [
        "Embed", "RmsNorm", "Linear", "Attention", "Add", "TakeRows", "Linear", "Logits",
    ]  # fmt: skip
    assert {name: spec.shape for name, spec in program.weights.items()} == {
        "emb": (50, 32),
        "model.layers.0.norm": (32,),
        "model.layers.0.attn.qkv": (64, 32),
        "model.layers.0.attn.qkv.bias": (64,),
        "head": (50, 32),
    }
    assert [name for name, spec in program.weights.items() if not spec.matrix] == [
        "model.layers.0.norm",
        "model.layers.0.attn.qkv.bias",
    ]


def test_every_op_writes_a_buffer_of_its_own() -> None:
    b = Builder(CFG)
    x = b.embed("emb")
    buffers = [x, b.rms_norm(x, "n1"), b.rms_norm(x, "n2"), b.glu(x), b.add(x, x), b.take_rows(x)]
    assert len({buffer.name for buffer in buffers}) == len(buffers)


def test_rows_that_need_logits_stay_marked() -> None:
    b = Builder(CFG)
    taken = b.take_rows(b.embed("emb"))
    assert taken.logits_rows
    assert b.linear(b.rms_norm(taken, "norm"), "head", 50).logits_rows


def test_senseless_programs_are_caught() -> None:
    b = Builder(CFG)
    x = b.embed("emb")
    with pytest.raises(AssertionError, match="emb is read twice"):
        b.embed("emb")
    with pytest.raises(AssertionError, match="belongs to a layer"):
        b.attention(b.linear(x, "qkv", 64))
    with pytest.raises(AssertionError, match="after 0 layers"), b.layer(1):
        pass
    with pytest.raises(AssertionError):
        b.add(x, b.take_rows(x))
    with pytest.raises(AssertionError):
        b.logits(x)


def test_a_program_without_its_layers_is_caught() -> None:
    b = Builder(CFG)
    b.logits(b.linear(b.take_rows(b.embed("emb")), "head", 50))
    with pytest.raises(AssertionError, match="0 of 1 layers"):
        b.finish()


def test_eps_and_bias_come_from_the_right_place() -> None:
    b = Builder(CFG)
    x = b.embed("emb")
    b.logits(b.linear(b.rms_norm(b.take_rows(x), "norm"), "head", 50))
    ops = b._ops
    norm = next(op for op in ops if isinstance(op, RmsNorm))
    head = next(op for op in ops if isinstance(op, Linear))
    assert (norm.eps, head.bias) == (1e-5, None)
    assert isinstance(ops[1], TakeRows)
