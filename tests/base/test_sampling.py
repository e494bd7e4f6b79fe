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
