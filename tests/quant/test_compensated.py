"""Compensation: outputs are closer where inputs go together, and never by breaking the grid."""

import ml_dtypes
import numpy as np
import pytest

from trimaran.quant import symmetric
from trimaran.quant.compensated import DAMPING, compensate, factor
from trimaran.quant.packed import to_bf16

RANDOM = np.random.default_rng(0)


def correlated(tokens: int, inputs: int) -> np.ndarray:
    """Tokens whose inputs lie mostly in a few directions, as those of real layers do."""
    directions = RANDOM.standard_normal((12, inputs))
    return (RANDOM.standard_normal((tokens, 12)) @ directions + 0.3 * RANDOM.standard_normal((tokens, inputs))).astype(
        np.float32
    )


def off(x: np.ndarray, weights: np.ndarray) -> float:
    return float(np.square(x.astype(np.float64) @ weights.T).sum())


def test_the_factor_is_of_the_inverse() -> None:
    x = correlated(400, 200)
    moments = x.T @ x
    damped = moments + DAMPING * np.diagonal(moments).mean() * np.eye(200)
    upper = factor(moments, np.arange(200)).upper.astype(np.float64)
    np.testing.assert_allclose(upper.T @ upper @ damped, np.eye(200), atol=2e-3)
    np.testing.assert_array_equal(np.tril(upper, -1), 0)


def test_the_order_is_that_of_the_factor_and_strips_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = correlated(900, 300)
    order = RANDOM.permutation(300)
    once = factor(x.T @ x, order).upper
    monkeypatch.setattr("trimaran.quant.compensated._STRIP", 50)
    np.testing.assert_allclose(factor(x[:, order].T @ x[:, order], np.arange(300)).upper, once, atol=1e-4)


def test_outputs_for_tokens_not_seen_are_a_third_off_of_what_rounding_leaves() -> None:
    x, weights = correlated(2048, 256), RANDOM.standard_normal((96, 256)).astype(np.float32)
    seen, unseen = x[:1536], x[1536:]
    for group in (32, 64):
        together = compensate(weights, factor(seen.T @ seen, np.arange(256)), group, to_bf16)
        alone = symmetric.fit(weights.reshape(96, -1, group), to_bf16)
        assert off(unseen, weights - together.values()) < off(unseen, weights - alone.values()) / 3


def test_results_are_on_the_grid() -> None:
    x, weights = correlated(300, 128), RANDOM.standard_normal((40, 128)).astype(np.float32)
    weights[3] = 0
    found = compensate(weights, factor(x.T @ x, np.arange(128)), 32, to_bf16)
    assert set(np.unique(found.codes)) <= set(range(-8, 8))
    np.testing.assert_array_equal(found.scale, found.scale.astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(found.values()[3], 0)
    assert found.error > symmetric.fit(weights.reshape(40, -1, 32), to_bf16).error


def test_inputs_that_are_not_correlated_change_little() -> None:
    weights = RANDOM.standard_normal((64, 128)).astype(np.float32)
    found = compensate(weights, factor(np.eye(128, dtype=np.float32), np.arange(128)), 32, to_bf16)
    alone = symmetric.fit(weights.reshape(64, -1, 32), to_bf16)
    np.testing.assert_array_equal(found.values(), alone.values())


def test_moments_of_no_rank_and_of_zeros_have_a_factor() -> None:
    x = correlated(3, 96)
    assert np.isfinite(factor(x.T @ x, np.arange(96)).upper).all()
    np.testing.assert_array_equal(factor(np.zeros((96, 96), np.float32), np.arange(96)).upper, np.eye(96))


def test_weights_take_over_what_their_inputs_have_lost() -> None:
    exact, weights = correlated(2048, 128), RANDOM.standard_normal((64, 128)).astype(np.float32)
    changed = exact @ (np.eye(128) + 0.02 * RANDOM.standard_normal((128, 128))).astype(np.float32)
    changed += 0.05 * RANDOM.standard_normal(changed.shape).astype(np.float32)
    seen, unseen = slice(0, 1536), slice(1536, None)
    off_by = []
    for lost in (None, (exact - changed)[seen].T @ changed[seen]):
        found = factor(changed[seen].T @ changed[seen], np.arange(128), lost)
        rounded = compensate(weights, found, 32, to_bf16).values()
        off_by.append(float(np.square(exact[unseen] @ weights.T - changed[unseen] @ rounded.T).sum()))
    assert off_by[1] < 0.5 * off_by[0]


def test_the_drift_is_in_the_inputs_own_order() -> None:
    exact = correlated(900, 64)
    changed = exact + 0.1 * correlated(900, 64)
    drifts = [
        factor(changed.T @ changed, order, (exact - changed).T @ changed).drift
        for order in (np.arange(64), RANDOM.permutation(64))
    ]
    np.testing.assert_allclose(*drifts, atol=1e-4)
