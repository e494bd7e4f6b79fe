import numpy as np
import pytest

from trimaran.evaluate.paired import paired_loss


def test_only_items_that_one_of_both_answers_count() -> None:
    loss = paired_loss([True, True, False, False], [True, False, True, False])
    assert (loss.lost, loss.gained, loss.points) == (1, 1, 0)
    assert loss.reference == loss.accuracy == 0.5
    assert paired_loss([True] * 8 + [False] * 2, [True] * 5 + [False] * 5).points == 30


def test_the_bound_is_the_published_formula() -> None:
    """Agresti and Min's R code, with b = 90 lost, c = 60 gained, n = 4,770, and z of one side."""
    loss = paired_loss([True] * 90 + [False] * 60 + [True] * 4620, [False] * 90 + [True] * 60 + [True] * 4620)
    difference = 30 / 4772
    deviation = np.sqrt((90 + 60 + 1) - 30**2 / 4772) / 4772
    assert loss.bound == pytest.approx(100 * (difference + 1.645 * deviation))
    assert 0.8 < loss.bound < 1.1


def test_few_items_without_a_difference_prove_little_and_many_much() -> None:
    assert paired_loss([True] * 10, [True] * 10).bound > 10
    assert paired_loss([True] * 4770, [True] * 4770).bound < 0.1


def test_in_95_of_100_samples_the_true_loss_is_below_the_bound() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(2000):
        drawn = rng.choice(3, 1000, p=[0.95, 0.03, 0.02])  # same, lost, gained: a loss of 1 point
        inside += paired_loss((drawn != 2).tolist(), (drawn != 1).tolist()).bound >= 1
    assert 0.935 < inside / 2000 < 0.975
