"""What the self-test of two pools lets pass, and what not."""

import math

import pytest

from trimaran.base.messages import Token
from trimaran.server.self_test import _difference, _divergence


def token(id_: int, **likely: float) -> Token:
    """One of which the likeliest are ``t<id>=probability``."""
    top = [(int(name[1:]), math.log(share)) for name, share in likely.items()]
    return Token(id_, dict(top)[id_], top)


FIRST = token(5, t5=0.9, t6=0.05)
ALONE = [FIRST, token(7, t7=0.8, t8=0.1)]
OTHER = [token(5, t5=0.7, t6=0.2), token(7, t7=0.6, t8=0.3)]  # the decode worker alone


def test_equal_precisions_give_equal_tokens():
    assert _difference(ALONE, list(ALONE), list(ALONE), same=True) is None
    why = _difference([FIRST, token(8, t8=0.5)], ALONE, ALONE, same=True)
    assert why == "they give [5, 8], one of them alone [5, 7]"


def test_the_first_token_is_the_prefill_workers_own_to_the_bit():
    near = Token(5, FIRST.logprob + 1e-9, FIRST.top)
    why = _difference([near, ALONE[1]], ALONE, OTHER, same=False)
    assert why == "the first token is 5, that of the prefill worker alone 5"


def test_the_second_token_is_near_one_of_both():
    between = [FIRST, token(7, t7=0.5, t8=0.4)]
    assert _difference(between, ALONE, OTHER, same=False) is None
    elsewhere = [FIRST, token(3, t3=0.98, t7=1e-6)]
    why = _difference(elsewhere, ALONE, OTHER, same=False)
    assert why is not None
    assert "nats from that of the worker alone that is nearer" in why


def test_pages_in_the_wrong_place_are_far_from_both():
    strange = [FIRST, token(40, t40=0.4, t41=0.3, t42=0.2)]
    assert _difference(strange, ALONE, OTHER, same=False) is not None


def test_divergence_counts_what_is_not_named_as_one_token():
    p, q = token(1, t1=0.5, t2=0.25), token(1, t1=0.25, t2=0.25)
    expected = 0.5 * math.log(2) + 0.25 * math.log(0.25 / 0.5)
    assert _divergence(p, q) == pytest.approx(expected)
    assert _divergence(p, p) == pytest.approx(0)


def test_what_only_one_names_is_unlikely_in_the_other():
    p, q = token(1, t1=0.99), token(2, t2=0.99)
    assert _divergence(p, q) == pytest.approx(0.99 * math.log(0.99 / 0.01) + 0.01 * math.log(0.01 / 0.99))
