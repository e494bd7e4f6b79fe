from dataclasses import replace

import numpy as np
import pytest

from trimaran.base.formats import ActivationFormat, CacheGroup, HeadsCache, KVFormat, WeightFormat
from trimaran.bench.floor import Cost, Part, Reading, count_work
from trimaran.kernels.program import Attention, Buffer, Embed, Experts, Linear, Logits, Program, RopeSpec, TakeRows
from trimaran.kernels.weights import Weight, touched_experts

HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 1, 32


def program() -> Program:
    x, qkv, out = Buffer("x", HIDDEN), Buffer("qkv", (HEADS + 2 * KV_HEADS) * HEAD_DIM), Buffer("out", HIDDEN)
    again, end = Buffer("again", qkv.width), Buffer("end", HIDDEN)
    last, logits = Buffer("last", HIDDEN, logits_rows=True), Buffer("logits", VOCAB, logits_rows=True)
    rope = RopeSpec(theta=1e4, dims=HEAD_DIM)
    return Program(
        family="toy",
        ops=(
            Embed(x, "table"),
            Linear(qkv, x, "qkv"),
            Attention(out, qkv, 0, 0, HEADS, KV_HEADS, HEAD_DIM, 1.0, rope),
            Linear(again, out, "qkv"),
            Attention(end, again, 0, 1, HEADS, KV_HEADS, HEAD_DIM, 1.0, rope),
            TakeRows(last, end),
            Linear(logits, last, "table"),
            Logits(logits),
        ),
        weights={},
        groups=(CacheGroup((HeadsCache(layers=2, kv_heads=KV_HEADS, head_dim=HEAD_DIM),)),),
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
    pair = 4 * HEADS * HEAD_DIM
    assert work.readings == (Reading(kv_bytes=2 * 2 * HEAD_DIM * 2, pair_ops=pair, taken_pair_ops=pair),)
    cost = work.cost([Part(context=9), Part(context=0, rows=3)], logits_rows=2)
    assert cost.bytes == work.weight_bytes + (10 + 3) * 2 * 2 * HEAD_DIM * 2
    assert cost.int8_ops == 2 * 4 * 2 * 128 * 64 + 2 * 2 * 96 * 64
    assert cost.fp32_ops == (10 + 1 + 2 + 3) * pair + (10 + 3) * pair  # in the last layer two rows attend
    assert work.cost([Part(context=0, rows=3)], logits_rows=0).fp32_ops == (1 + 2 + 3) * pair


@pytest.mark.parametrize(
    ("layer", "activations"),
    [(WeightFormat.BF16, ActivationFormat.INT8), (WeightFormat.INT4, ActivationFormat.FP32)],
)
def test_what_is_not_int8_on_both_sides_is_float(layer, activations):
    work = count_work(program(), weights(layer, WeightFormat.FP32), KVFormat.FP32, activations)
    assert work.int8_ops == work.head_int8_ops == 0
    assert (work.fp32_ops, work.head_fp32_ops) == (2 * 2 * 128 * 64, 2 * 96 * 64)


def test_attention_over_int8_pages_is_int8():
    work = count_work(program(), weights(WeightFormat.INT4, WeightFormat.INT8), KVFormat.INT8, ActivationFormat.INT8)
    assert [reading.kv_bytes for reading in work.readings] == [2 * (2 * HEAD_DIM + 8)]
    cost = work.cost([Part(context=9)], logits_rows=0)
    assert (cost.int8_ops, cost.fp32_ops) == (2 * 2 * 128 * 64 + 10 * 4 * HEADS * HEAD_DIM, 0)


def test_of_experts_those_are_read_that_rows_are_likely_to_go_to():
    dense = program()
    x = dense.ops[2].out
    experts = Experts(Buffer("mixed", HIDDEN), x, Buffer("routes", 4), "gate_up", "down", experts=8, width=32)
    again = replace(dense.ops[3], x=experts.out)
    mixture = replace(dense, ops=(*dense.ops[:3], experts, again, *dense.ops[4:]))
    nothing = np.empty(0)
    held = weights(WeightFormat.INT4, WeightFormat.INT8)
    args = KVFormat.BF16, ActivationFormat.INT8
    plain = count_work(dense, held, *args)
    held["gate_up"] = Weight("gate_up", WeightFormat.INT4, (8 * 64, HIDDEN), nothing)
    held["down"] = Weight("down", WeightFormat.BF16, (8 * HIDDEN, 32), nothing)
    work = count_work(mixture, held, *args)
    each = 64 * 2 * 18 + HIDDEN * 32 * 2
    assert work.weights_read(1) == plain.weight_bytes + 2 * each
    assert work.weights_read(2) == plain.weight_bytes + 3.5 * each  # 8 * (1 - (3/4)^2)
    assert work.weights_read(100) == plain.weight_bytes + 8 * each
    assert work.int8_ops - plain.int8_ops == 2 * 2 * 64 * HIDDEN
    assert work.fp32_ops - plain.fp32_ops == 2 * 2 * HIDDEN * 32
    cost = work.cost([Part(context=0, rows=2)], logits_rows=1)
    assert cost.bytes == work.weights_read(2) + 2 * work.readings[0].kv_bytes


def test_touched_experts_against_draws():
    rng = np.random.default_rng(0)
    draws = [len(np.unique([rng.permutation(12)[:3] for _ in range(5)])) for _ in range(400)]
    assert touched_experts(12, 3, 5) == pytest.approx(np.mean(draws), abs=0.25)


@pytest.mark.parametrize("window", [None, 1, 2, 7, 100])
@pytest.mark.parametrize("part", [Part(0), Part(9), Part(0, 12), Part(5, 12), Part(40, 3)])
def test_a_window_bounds_what_is_read(window, part):
    seen = [
        [key for key in range(query + 1) if window is None or query - window < key]
        for query in range(part.context, part.context + part.rows)
    ]
    reading = Reading(kv_bytes=1, pair_ops=1, window=window)
    assert reading.pairs(part) == sum(map(len, seen))
    assert reading.tokens(part) == len(set().union(*seen))


def test_each_group_is_counted_with_its_own_layers():
    toy = program()
    attention = next(op for op in toy.ops if isinstance(op, Attention))
    local = replace(attention, group=1, window=4)
    toy = replace(toy, ops=(*toy.ops, local, local), groups=(*toy.groups, replace(toy.groups[0], window=4)))
    work = count_work(toy, weights(WeightFormat.FP32, WeightFormat.FP32), KVFormat.FP32, ActivationFormat.FP32)
    token, pair = 2 * 2 * HEAD_DIM * 4, 4 * HEADS * HEAD_DIM
    assert work.readings == (Reading(token, pair, taken_pair_ops=pair), Reading(token, 2 * pair, window=4))
    assert work.cost([Part(9)], 0).bytes == work.weight_bytes + (10 + 4) * token


class FixedMachine:
    def seconds(self, *amounts: int) -> float:
        return float(sum(amounts))


def test_a_step_takes_what_the_machine_needs_for_its_amounts():
    assert Cost(bytes=2000, int8_ops=40, fp32_ops=10).seconds(FixedMachine()) == 2050.0
