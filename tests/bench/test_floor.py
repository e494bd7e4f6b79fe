import numpy as np
import pytest

from trimaran.base.formats import ActivationFormat, CacheGroup, HeadsCache, KVFormat, WeightFormat
from trimaran.bench.floor import Cost, Part, count_work
from trimaran.kernels.program import Attention, Buffer, Embed, Linear, Logits, Program, RopeSpec, TakeRows
from trimaran.kernels.weights import Weight

HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 1, 32


def program() -> Program:
    x, qkv, out = Buffer("x", HIDDEN), Buffer("qkv", (HEADS + 2 * KV_HEADS) * HEAD_DIM), Buffer("out", HIDDEN)
    last, logits = Buffer("last", HIDDEN, logits_rows=True), Buffer("logits", VOCAB, logits_rows=True)
    rope = RopeSpec(theta=1e4, dims=HEAD_DIM)
    return Program(
        family="toy",
        ops=(
            Embed(x, "table"),
            Linear(qkv, x, "qkv"),
            Attention(out, qkv, 0, 0, HEADS, KV_HEADS, HEAD_DIM, 1.0, rope),
            TakeRows(last, out),
            Linear(logits, last, "table"),
            Logits(logits),
        ),
        weights={},
        groups=(CacheGroup((HeadsCache(layers=1, kv_heads=KV_HEADS, head_dim=HEAD_DIM),)),),
        vocab=VOCAB,
        hidden=HIDDEN,
        context=128,
    )


def weights(layer: WeightFormat, head: WeightFormat) -> dict[str, Weight]:
    nothing = np.empty(0)
    return {
        "qkv": Weight("qkv", layer, ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN), nothing),
        "table": Weight("table", head, (VOCAB, HIDDEN), nothing),
    }


def test_bytes_and_operations_of_a_step():
    work = count_work(program(), weights(WeightFormat.INT4, WeightFormat.INT8), KVFormat.BF16, ActivationFormat.INT8)
    assert work.weight_bytes == 128 * 2 * 18 + 96 * 2 * (34 - 16)  # greedy: the head's high halves
    assert work.kv_bytes == 2 * HEAD_DIM * 2
    cost = work.cost([Part(context=9), Part(context=0, rows=3)], logits_rows=2)
    assert cost.bytes == work.weight_bytes + (10 + 3) * work.kv_bytes
    assert cost.int8_ops == 4 * 2 * 128 * 64 + 2 * 2 * 96 * 64
    assert cost.fp32_ops == (10 + 1 + 2 + 3) * 4 * HEADS * HEAD_DIM


@pytest.mark.parametrize(
    ("layer", "activations"),
    [(WeightFormat.BF16, ActivationFormat.INT8), (WeightFormat.INT4, ActivationFormat.FP32)],
)
def test_what_is_not_int8_on_both_sides_is_float(layer, activations):
    work = count_work(program(), weights(layer, WeightFormat.FP32), KVFormat.FP32, activations)
    assert work.int8_ops == work.head_int8_ops == 0
    assert (work.fp32_ops, work.head_fp32_ops) == (2 * 128 * 64, 2 * 96 * 64)


def test_attention_over_int8_pages_is_int8():
    work = count_work(program(), weights(WeightFormat.INT4, WeightFormat.INT8), KVFormat.INT8, ActivationFormat.INT8)
    assert work.kv_bytes == 2 * HEAD_DIM + 8
    cost = work.cost([Part(context=9)], logits_rows=0)
    assert (cost.int8_ops, cost.fp32_ops) == (2 * 128 * 64 + 10 * 4 * HEADS * HEAD_DIM, 0)


class FixedMachine:
    def seconds(self, *amounts: int) -> float:
        return float(sum(amounts))


def test_a_step_takes_what_the_machine_needs_for_its_amounts():
    assert Cost(bytes=2000, int8_ops=40, fp32_ops=10).seconds(FixedMachine()) == 2050.0
