import msgspec
import pytest

from trimaran.base.errors import RequestError
from trimaran.base.grammar import MAX_GRAMMAR_LENGTH, Grammar
from trimaran.base.messages import Submit, ToEngineBatch
from trimaran.base.sampling import SamplingParams


def test_travels_with_the_sampling_options() -> None:
    grammar = Grammar("regex", "[0-9]+", "guided_regex")
    sent = ToEngineBatch([Submit("a", [1], SamplingParams(grammar=grammar))])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ToEngineBatch) == sent


def test_is_not_plainly_greedy() -> None:
    assert SamplingParams(temperature=0).plain_greedy
    assert not SamplingParams(temperature=0, grammar=Grammar("regex", "a")).plain_greedy


def test_an_endless_text_is_refused_by_its_field() -> None:
    with pytest.raises(RequestError, match="guided_regex has") as refused:
        Grammar("regex", "a" * (MAX_GRAMMAR_LENGTH + 1), "guided_regex")
    assert refused.value.param == "guided_regex"


def test_an_unknown_kind_is_told_which_there_are() -> None:
    with pytest.raises(RequestError, match="kind 'json'; kinds are json_schema, regex, choice, lark, ebnf"):
        Grammar("json", "{}")  # type: ignore[arg-type]  # what a caller may write all the same


def test_says_itself_where_an_answer_ends() -> None:
    with pytest.raises(RequestError, match="ignore_eos cannot be used with response_format") as refused:
        SamplingParams(ignore_eos=True, grammar=Grammar("json_schema", "{}", "response_format"))
    assert refused.value.param == "ignore_eos"
