import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trimaran.engine.filters import Scratch, draw, keep_heavy, top_k, top_p, uniform

rows = arrays(np.float32, st.integers(1, 700), elements=st.floats(-8, 8, width=16))


def naive_order(values: np.ndarray) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


@settings(max_examples=100)
@given(rows, st.integers(1, 800))
def test_top_k_is_the_head_of_the_sorted_row(scores, k):
    assert top_k(scores, k, Scratch(len(scores))).tolist() == naive_order(scores)[:k]


@settings(max_examples=200)
@given(rows, st.floats(1e-6, 0.9999), st.floats(0.1, 4))
def test_top_p_is_the_smallest_head_that_holds_the_mass(scores, mass, sharpness):
    weights = np.exp((scores - scores.max()) * np.float32(sharpness))
    least = top_p(weights, mass, Scratch(len(weights)))
    exact = weights.astype(np.float64)
    target, rounding = mass * exact.sum(), 1e-5 * exact.sum()
    assert least in weights
    assert exact[weights >= least].sum() >= target - rounding
    assert exact[weights > least].sum() < target + rounding, "less would do"


@pytest.mark.parametrize("mass", [1e-9, 0.3, 0.999])
def test_top_p_on_a_long_row(mass):
    weights = np.exp(np.random.default_rng(0).standard_normal(50_000).astype(np.float32) * 2 - 8)
    order = np.sort(weights.astype(np.float64))[::-1]
    expected = order[np.searchsorted(np.cumsum(order), mass * order.sum())]
    assert top_p(weights, mass, Scratch(len(weights))) == pytest.approx(expected, rel=1e-3)


def test_filters_work_on_the_head_of_a_longer_scratch():
    row = np.array([0.5, 1.0, 0.25], np.float32)
    scratch = Scratch(100)
    assert top_k(row, 2, scratch).tolist() == [1, 0]
    assert top_p(row, 0.8, scratch) == 0.5
    keep_heavy(row, np.float32(0.5), scratch)
    assert row.tolist() == [0.5, 1.0, 0.0]


def test_top_p_keeps_ties():
    assert top_p(np.ones(5000, np.float32), 0.5, Scratch(5000)) == 1


@settings(max_examples=200)
@given(rows, st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_running_sum(scores, u):
    weights = np.exp(scores)
    weights[::3] = 0
    if not weights.any():
        weights[0] = 1
    index = draw(weights, u)
    assert weights[index] > 0
    running = np.cumsum(weights, dtype=np.float64)
    slack = 1e-5 * running[-1]
    assert running[index] >= u * running[-1] - slack
    assert (running[index - 1] if index else 0.0) <= u * running[-1] + slack


def test_draws_follow_the_weights():
    weights = np.zeros(1000, np.float32)
    weights[[3, 500, 999]] = [1, 2, 5]
    counts = np.bincount([draw(weights, uniform(7, i)) for i in range(4000)], minlength=1000)
    assert counts.sum() == counts[[3, 500, 999]].sum()
    np.testing.assert_allclose(counts[[3, 500, 999]] / 4000, np.array([1, 2, 5]) / 8, atol=0.03)


def test_uniform_depends_on_key_and_position_alone():
    numbers = [uniform(key, position) for key in (0, 1, 2**63) for position in range(500)]
    assert all(0 <= u < 1 for u in numbers)
    assert len(set(numbers)) == len(numbers)
    assert abs(np.mean(numbers) - 0.5) < 0.03
    assert uniform(5, 9) == uniform(5, 9)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1024])
def test_draw_reaches_both_ends_of_every_block_layout(size):
    weights = np.ones(size, np.float32)
    assert draw(weights, 0.0) == 0
    assert draw(weights, 1 - 2**-53) == size - 1
