"""Sampling parameters as Python code may write them: what the type checker would say is said at run time too."""

import pytest

from trimaran.base.errors import RequestError
from trimaran.base.sampling import SamplingParams


def test_one_stop_string_is_not_a_list_of_characters():
    with pytest.raises(RequestError, match="stop=") as caught:
        SamplingParams(stop="Paris")
    assert caught.value.param == "stop"


@pytest.mark.parametrize("name", ["n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs"])
def test_counts_are_whole(name):
    with pytest.raises(RequestError, match="whole") as caught:
        SamplingParams(**{name: 1.5})
    assert caught.value.param == name
    assert getattr(SamplingParams(**{name: 1}), name) == 1


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_shares_may_be_written_as_whole_numbers(name):
    assert getattr(SamplingParams(**{name: 1}), name) == 1


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max_tokens", 0, "max_tokens must be at least 1, not 0"),
        ("max_tokens", float("nan"), "max_tokens must be at least 1, not nan"),
        ("max_tokens", 2**63, f"max_tokens must be between 1 and {2**63 - 1}, not {2**63}"),
        ("top_k", -2, "top_k must be at least -1, not -2"),
        ("n", 0, "n must be between 1 and 128, not 0"),
        ("min_p", 1.5, "min_p must be between 0.0 and 1.0, not 1.5"),
    ],
)
def test_a_range_is_told_as_far_as_it_matters(name, value, says):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert (str(caught.value), caught.value.param) == (says, name)
