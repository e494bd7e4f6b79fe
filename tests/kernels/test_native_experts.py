"""Mixture of experts on the native executor: against the definition, and the same bits whatever rows come together."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran import _native
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.program import Add, Buffer, Experts, Linear, Op, Program, RmsNorm, Route, TakeRows
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.reference_ops import route
from trimaran.kernels.step import ExecutorOptions
from trimaran.kernels.weights import Weight
from trimaran.quant.convert import quantise

from .single_op import X, buffer, fp32, named, program, rows_step, with_outliers

ROWS, HIDDEN, WIDTH, EXPERTS, TOP_K = 300, 320, 64, 12, 3
OPTIONS = ExecutorOptions(KVFormat.FP32, num_pages=2, max_rows=ROWS, max_sequences=ROWS, threads=2)
EXACT = replace(OPTIONS, activations=ActivationFormat.FP32)
ROUTE = Route(buffer("routes", 2 * TOP_K), buffer("logits", EXPERTS), TOP_K, "softmax")


def mixture(fmt: WeightFormat, *, one_expert: bool = False) -> tuple[Program, list[Weight]]:
    """``x + experts(norm(x))``. ``one_expert``: half of the rows have the same experts."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, HIDDEN)).astype(np.float32)
    router = rng.standard_normal((EXPERTS, HIDDEN)).astype(np.float32)
    if one_expert:
        x[::2] = x[:1] + 0.01 * x[::2]
    gate_up = rng.standard_normal((EXPERTS * 2 * WIDTH, HIDDEN)).astype(np.float32) * HIDDEN**-0.5
    down = rng.standard_normal((EXPERTS * HIDDEN, WIDTH)).astype(np.float32) * WIDTH**-0.5
    weights = [
        fp32(X, x),
        fp32("norm", rng.standard_normal(HIDDEN).astype(np.float32)),
        fp32("router", router),
        with_outliers(quantise("gate_up", gate_up, fmt)),
        with_outliers(quantise("down", down, fmt)),
    ]
    source, normed, made, out = (buffer(name, HIDDEN) for name in (X, "normed", "made", "out"))
    ops: list[Op] = [
        RmsNorm(normed, source, "norm", 1e-5),
        Linear(ROUTE.logits, normed, "router"),
        ROUTE,
        Experts(made, normed, ROUTE.out, "gate_up", "down", EXPERTS, WIDTH),
        Add(out, source, made),
    ]
    return program(ops, weights, out), weights


def run(executor: NativeExecutor | ReferenceExecutor, rows: range | list[int]) -> np.ndarray:
    logits = executor.run(rows_step(rows)).logits
    assert logits is not None
    return logits.copy()


@pytest.mark.parametrize("isa", _native.usable_isas())
@pytest.mark.parametrize("fmt", list(WeightFormat))
@pytest.mark.parametrize("activations", list(ActivationFormat))
def test_agrees_with_the_definition(
    monkeypatch: pytest.MonkeyPatch, isa: str, fmt: WeightFormat, activations: ActivationFormat
) -> None:
    monkeypatch.setenv("TRIMARAN_ISA", isa)
    model, weights = mixture(fmt)
    options = replace(OPTIONS, activations=activations)
    ours = NativeExecutor(model, named(weights), options)
    expected = run(ReferenceExecutor(model, named(weights), options, np.float64), range(40))
    rounds = fmt.integer and activations is ActivationFormat.INT8  # to another integer where it is near a half
    np.testing.assert_allclose(run(ours, range(40)), expected, atol=2e-2 if rounds else 2e-5)


@pytest.mark.parametrize("isa", _native.usable_isas())
@pytest.mark.parametrize("fmt", list(WeightFormat))
@pytest.mark.parametrize("options", [OPTIONS, EXACT])
def test_bits_do_not_depend_on_the_company(
    monkeypatch: pytest.MonkeyPatch, isa: str, fmt: WeightFormat, options: ExecutorOptions
) -> None:
    monkeypatch.setenv("TRIMARAN_ISA", isa)
    model, weights = mixture(fmt, one_expert=True)  # more rows of an expert than a piece holds
    together = run(NativeExecutor(model, named(weights), options), range(ROWS))
    for threads in (1, 3):
        executor = NativeExecutor(model, named(weights), replace(options, threads=threads))
        assert run(executor, range(ROWS)).tobytes() == together.tobytes()
        for rows in ([7], [6, 7], [299, 2, 4, 6, 8, 9], list(range(0, 58, 2)), list(range(100, 240))):
            assert run(executor, rows).tobytes() == together[rows].tobytes()


@pytest.mark.parametrize("fmt", [WeightFormat.FP32, WeightFormat.INT4])
def test_a_row_that_is_no_number_spoils_itself_alone(fmt: WeightFormat) -> None:
    model, weights = mixture(fmt)
    executor = NativeExecutor(model, named(weights), OPTIONS)
    clean = run(executor, range(20))
    weights[0].data[5, 3] = np.nan
    spoilt = run(NativeExecutor(model, named(weights), OPTIONS), range(20))
    assert np.isnan(spoilt[5]).all()
    others = [row for row in range(20) if row != 5]
    assert spoilt[others].tobytes() == clean[others].tobytes()


def test_no_rows_at_all() -> None:
    """A mixture behind ``TakeRows``, in a step that wants no logits."""
    _, weights = mixture(WeightFormat.FP32)
    source, taken, made = (buffer(name, HIDDEN, logits_rows=name != X) for name in (X, "taken", "made"))
    router = replace(
        ROUTE,
        out=replace(ROUTE.out, logits_rows=True),
        logits=replace(ROUTE.logits, logits_rows=True),
    )
    ops: list[Op] = [
        TakeRows(taken, source),
        Linear(router.logits, taken, "router"),
        router,
        Experts(made, taken, router.out, "gate_up", "down", EXPERTS, WIDTH),
    ]
    executor = NativeExecutor(program(ops, weights, made), named(weights), OPTIONS)
    step = rows_step(range(3))
    assert len(executor.run(replace(step, logits_rows=step.logits_rows[:0])).greedy) == 0
    assert len(executor.run(step).greedy) == 3


def test_only_experts_that_rows_were_routed_to_are_read() -> None:
    """Matrices of the others may hold anything."""
    model, weights = mixture(WeightFormat.FP32)
    executor = NativeExecutor(model, named(weights), OPTIONS)
    expected = run(executor, [3])
    used = [
        expert
        for expert in range(EXPERTS)
        if not np.array_equal(expected, run(NativeExecutor(model, named(without(weights, expert)), OPTIONS), [3]))
    ]
    assert len(used) == TOP_K


def without(weights: list[Weight], expert: int) -> list[Weight]:
    changed = []
    for weight in weights:
        data = weight.data.copy()
        if weight.name in ("gate_up", "down"):
            data.reshape(EXPERTS, -1)[expert] = np.nan
        changed.append(replace(weight, data=data))
    return changed


def routes(op: Route, logits: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    weights = [fp32(X, logits)] + ([] if bias is None else [fp32("bias", bias)])
    model = program([replace(op, logits=buffer(X, logits.shape[1]))], weights, op.out)
    executor = NativeExecutor(model, named(weights), OPTIONS)
    return run(executor, range(len(logits)))


@pytest.mark.parametrize("isa", _native.usable_isas())
@pytest.mark.parametrize(("experts", "groups"), [(4, 2), (8, 4), (40, 20), (160, 40), (256, 64)])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalise", [False, True])
def test_routes(
    monkeypatch: pytest.MonkeyPatch, isa: str, experts: int, groups: int, scoring: str, normalise: bool
) -> None:
    monkeypatch.setenv("TRIMARAN_ISA", isa)
    rng, top_k = np.random.default_rng(experts), min(8, experts)
    logits = rng.standard_normal((2 * top_k, experts)).astype(np.float32) * 3
    logits[:top_k] = logits[:top_k].round()  # ties
    bias = rng.standard_normal(experts).astype(np.float32).round() * 4
    op = Route(Buffer("routes", 2 * top_k), buffer("logits", experts), top_k, scoring, "bias", normalise=normalise)
    for plan in (op, replace(op, groups=2, top_groups=2), replace(op, groups=groups, top_groups=groups)):
        compare(plan, logits, bias)
    if experts >= 40:
        compare(replace(op, groups=4, top_groups=1, bias=None, factor=2.5, epsilon=0.5), logits, None)


def compare(op: Route, logits: np.ndarray, bias: np.ndarray | None) -> None:
    got, expected = routes(op, logits, bias), route(logits, bias, op)
    np.testing.assert_array_equal(got[:, : op.top_k], expected[:, : op.top_k])
    np.testing.assert_allclose(got[:, op.top_k :], expected[:, op.top_k :], rtol=2e-6, atol=1e-30)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([-2.0, 0.0, 1.0, float("-inf")]), min_size=8, max_size=8), st.sampled_from([1, 2, 4]))
def test_the_lower_of_equal_experts_wins(logits: list[float], groups: int) -> None:
    op = Route(Buffer("routes", 6), buffer("logits", 8), 3, "sigmoid", groups=groups, top_groups=max(1, groups // 2))
    compare(op, np.array([logits], np.float32), None)
