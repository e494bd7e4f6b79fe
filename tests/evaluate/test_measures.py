import numpy as np

from trimaran.evaluate.measures import divergence, log_probability, log_softmax, same_top


def test_divergence_of_two_coins() -> None:
    p, q = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    assert np.allclose(divergence(p, q), 0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert divergence(p, p) == 0


def test_same_top_compares_the_first_of_equals() -> None:
    ours, theirs = np.float32([[0, 2, 2], [1, 0, 0]]), np.float32([[0, 1, 0], [0, 1, 0]])
    assert same_top(ours, theirs).tolist() == [True, False]


def test_the_fast_log_probability_is_that_of_the_softmax() -> None:
    logits = np.random.default_rng(0).normal(0, 8, (5, 3000)).astype(np.float32)
    tokens = np.asarray([[0, 2999], [1, 1], [5, 7], [8, 9], [100, 3]])
    expected = np.take_along_axis(log_softmax(logits), tokens, axis=1)
    assert np.abs(log_probability(logits, tokens) - expected).max() < 2e-6


def test_logits_that_are_not_finite_give_no_number() -> None:
    logits = np.float32([[0, np.nan, 1]])
    assert np.isnan(log_probability(logits, np.asarray([[0]]))).all()
    assert np.isnan(divergence(log_softmax(logits), log_softmax(np.zeros((1, 3), np.float32)))).all()
