"""Routing and experts against plain loops: ties, groups, minus infinity, weights from scores that no bias touches."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trimaran.base.formats import ActivationFormat, KVFormat
from trimaran.kernels import reference_ops as ops
from trimaran.kernels.program import Experts, Linear, Route
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.step import ExecutorOptions

from .single_op import X, buffer, fp32, named, program, rows_step

PLAIN = Route(buffer("routes", 6), buffer("logits", 8), top_k=3, scoring="sigmoid")


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def route(logits: list[float], op: Route, bias: list[float] | None = None) -> tuple[list[int], list[float]]:
    rows = np.array([logits], np.float32)
    out = ops.route(rows, None if bias is None else np.array(bias, np.float32), op)[0]
    return out[: op.top_k].astype(int).tolist(), out[op.top_k :].tolist()


def by_hand(logits: list[float], op: Route, bias: list[float]) -> list[int]:
    """The experts that ``op`` chooses, by sorting in Python. Sums of other numbers may differ in their last bits alone,
    so scores are rounded as the reference's are."""
    x = np.array(logits, np.float32)
    scores = list(1 / (1 + np.exp(-x)) + np.array(bias, np.float32))
    size = len(scores) // op.groups
    groups = [sorted(scores[g * size : (g + 1) * size])[-2:] for g in range(op.groups)]
    best = sorted(range(op.groups), key=lambda g: -sum(groups[g], np.float32(0)))[: op.top_groups]
    open_ = [e for e in range(len(scores)) if op.groups == 1 or e // size in best]
    closed = [e for e in range(len(scores)) if e not in open_]
    return (sorted(open_, key=lambda e: -scores[e]) + closed)[: op.top_k]


levels = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.7, 1.5]), min_size=8, max_size=8)
biases = st.lists(st.sampled_from([-1.0, 0.0, 0.25]), min_size=8, max_size=8)


@example([-2.0, 0.0, -0.5, 0.0, 0.0, -2.0, -2.0, -2.0], [0.0, 0.25, 0.0, 0.0, 0.0, 0.25, -1.0, -1.0], (4, 2))
@given(levels, biases, st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 3)]))
def test_choice_among_equal_scores_and_groups(logits: list[float], bias: list[float], groups: tuple[int, int]) -> None:
    op = replace(PLAIN, groups=groups[0], top_groups=groups[1], bias="bias")
    experts, weights = route(logits, op, bias)
    assert experts == by_hand(logits, op, bias)
    scores = [sigmoid(logits[e]) for e in experts]
    assert weights == pytest.approx([s / sum(scores) for s in scores], rel=1e-6)


def test_the_lower_expert_wins_a_tie() -> None:
    assert route([0.0] * 8, PLAIN)[0] == [0, 1, 2]
    assert route([0.0, 1, 0, 1, 0, 1, 1, 0], PLAIN)[0] == [1, 3, 5]


def test_a_closed_group_is_minus_infinity_and_not_zero() -> None:
    """With a bias below -1 every c is negative: a mask of 0 would let closed groups in."""
    op = replace(PLAIN, groups=4, top_groups=2, bias="bias")
    experts, _ = route([0.1, 0.2, 3, 3, 0.3, 0.4, 2, 2], op, [-2.0] * 8)
    assert experts == [2, 3, 6]


def test_groups_are_judged_by_their_two_best() -> None:
    op = replace(PLAIN, groups=2, top_groups=1)
    assert route([9, -9, -9, -9, 1, 1, -9, -9], op)[0] == [4, 5, 6]  # 1 + 0 against 0.73 + 0.73


def test_a_bias_moves_the_choice_and_not_the_weights() -> None:
    op = replace(PLAIN, top_k=1, bias="bias", normalise=False, factor=2.5)
    assert route([1.0] * 8, op, [0.0] * 5 + [1, 0, 0]) == ([5], [pytest.approx(2.5 * sigmoid(1))])


def test_epsilon_and_factor() -> None:
    op = replace(PLAIN, epsilon=0.5, factor=3.0)
    assert route([0.0] * 8, op)[1] == pytest.approx([3 * 0.5 / 2.0] * 3)


def test_softmax_is_over_all_experts() -> None:
    op = replace(PLAIN, scoring="softmax", normalise=False)
    logits = [0.0, 1, 2, 3, 4, 5, 6, 7]
    total = sum(map(math.exp, logits))
    assert route(logits, op) == ([7, 6, 5], pytest.approx([math.exp(x) / total for x in (7, 6, 5)]))
    assert route(logits, replace(op, normalise=True))[1] == pytest.approx(
        [math.exp(x) / sum(map(math.exp, (5, 6, 7))) for x in (7, 6, 5)]
    )


def test_routing_is_float32_whatever_it_is_given() -> None:
    near = np.array([[0.0, 1e-12, 0, 0, 0, 0, 0, 0]])  # apart in float64, equal as float32 scores
    assert ops.route(near, None, PLAIN)[0, 0] == 0
    assert ops.route(near, None, PLAIN).dtype == np.float32


def test_huge_logits_stay_finite() -> None:
    for scoring in ("softmax", "sigmoid"):
        _, weights = route([-1000.0, 1000] * 4, replace(PLAIN, scoring=scoring))
        assert weights == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("compute", [np.float32, np.float64])
def test_experts_by_loops(compute: type) -> None:
    rng = np.random.default_rng(0)
    experts, width, hidden = 4, 6, 10
    x, router = rng.standard_normal((5, hidden)), rng.standard_normal((experts, hidden))
    gate_up = rng.standard_normal((experts, 2 * width, hidden))
    down = rng.standard_normal((experts, hidden, width))
    logits, routes, out = buffer("logits", experts), buffer("routes", 4), buffer("out", hidden)
    weights = [
        fp32(X, x),
        fp32("router", router),
        fp32("gate_up", gate_up.reshape(-1, hidden)),
        fp32("down", down.reshape(-1, width)),
    ]
    model = program(
        [
            Linear(logits, buffer(X, hidden), "router"),
            Route(routes, logits, 2, "softmax"),
            Experts(out, buffer(X, hidden), routes, "gate_up", "down", experts, width),
        ],
        weights,
        out,
    )
    options = ExecutorOptions(KVFormat.FP32, ActivationFormat.FP32, num_pages=2)
    got = ReferenceExecutor(model, named(weights), options, compute).run(rows_step(range(5))).logits
    expected = np.zeros_like(x)
    for row, source in zip(expected, x, strict=True):
        score = np.exp(router @ source)
        pair = np.argsort(-score)[:2]
        for e in pair:
            gate, up = np.split(gate_up[e] @ source, 2)
            row += score[e] / score[pair].sum() * (down[e] @ (gate / (1 + np.exp(-gate)) * up))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
