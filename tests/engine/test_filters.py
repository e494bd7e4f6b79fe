import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trimaran.engine.filters import draw, sharpness, top_k, top_p, uniform, weigh

rows = arrays(np.float32, st.integers(1, 700), elements=st.floats(-8, 8, width=16))


def naive_order(values: np.ndarray) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


@settings(max_examples=100)
@given(rows, st.sampled_from([1e-9, 0.3, 1.0, 100.0]))
def test_weights_are_the_exponentials_of_scores(scores, temperature):
    weights = weigh(scores, sharpness(temperature))
    exact = np.exp((scores.astype(np.float64) - scores.max()) / max(temperature, 1e-6))
    np.testing.assert_allclose(weights, exact, rtol=1e-6, atol=2.0**-35)
    assert weights.max() == 1
    assert weights.dtype == np.float32


@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 30.0])
def test_weights_add_up_exactly_in_any_order(spread):
    rng = np.random.default_rng(0)
    weights = weigh((rng.standard_normal(2**19) * spread).astype(np.float32), sharpness(1)).astype(np.float64)
    assert (np.rint(weights * 2.0**34) == weights * 2.0**34).all()
    total = weights.sum()
    assert np.cumsum(weights)[-1] == total
    assert np.cumsum(rng.permutation(weights))[-1] == total


def test_the_heaviest_weighs_one_whatever_the_range():
    with np.errstate(all="raise"):
        assert weigh(np.array([3e38, -3e38, 3e38], np.float32), sharpness(1e-9)).tolist() == [1, 0, 1]
        assert weigh(np.array([-np.inf, -5.0], np.float32), sharpness(1)).tolist() == [0, 1]


@settings(max_examples=100)
@given(rows, st.integers(1, 800))
def test_top_k_is_the_head_of_the_sorted_row(scores, k):
    assert top_k(scores, k).tolist() == naive_order(scores)[:k]


@settings(max_examples=200)
@given(rows, st.floats(1e-6, 0.9999), st.floats(0.1, 4))
def test_top_p_is_the_smallest_head_that_holds_the_mass(scores, mass, temperature):
    weights = weigh(scores, sharpness(temperature))
    least = top_p(weights, mass)
    exact = weights.astype(np.float64)
    assert least in weights
    assert exact[weights >= least].sum() >= mass * exact.sum()
    assert exact[weights > least].sum() < mass * exact.sum(), "less would do"


def test_top_p_keeps_ties():
    assert top_p(np.ones(5000, np.float32), 0.5) == 1


@settings(max_examples=200)
@given(rows, st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_running_sum(scores, u):
    weights = weigh(scores, 1.0)
    weights[::3] = 0
    if not weights.any():
        weights[0] = 1
    index = draw(weights, u)
    assert weights[index] > 0
    running = np.cumsum(weights, dtype=np.float64)
    assert running[index] >= u * running[-1]
    assert (running[index - 1] if index else 0.0) <= u * running[-1]


def test_draws_follow_the_weights():
    weights = np.zeros(1000, np.float32)
    weights[[3, 500, 999]] = np.array([1, 2, 5]) / 5
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
def test_draw_reaches_both_ends(size):
    weights = np.ones(size, np.float32)
    assert draw(weights, 0.0) == 0
    assert draw(weights, 1 - 2**-53) == size - 1
