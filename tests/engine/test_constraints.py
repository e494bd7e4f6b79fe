"""Grammars in the engine: what is answered belongs to them, whatever happens to the request meanwhile."""

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.byte_model import END, VOCAB, write_byte_model

from trimaran.base.errors import QueueFullError, RequestError, UnsupportedError
from trimaran.base.grammar import Grammar
from trimaran.base.messages import Submit
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint import open_checkpoint
from trimaran.engine.constraints.matcher import Matcher
from trimaran.engine.constraints.tokens import TokenTable
from trimaran.engine.decoding import DecodeEngine
from trimaran.engine.engine import Engine
from trimaran.engine.prefilling import PrefillEngine
from trimaran.kernels.null import NullModel
from trimaran.text.tokenizer import Tokenizer, open_tokenizer

from .driving import Answer, null_engine, run
from .pooled import Pair

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    with open_checkpoint(model) as checkpoint:
        return open_tokenizer(checkpoint)


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    engine = constrained_engine(model)
    yield engine
    engine.close()


def constrained_engine(model: Path, **options: Any) -> Engine:
    null = NullModel(vocab=VOCAB, context=256, eos_id=END, eos_one_in=8)
    return null_engine(null=null, **{"model": str(model), "seed": 1, "max_num_batched_tokens": 64, **options})


def schema(value: Any = None) -> Grammar:
    return Grammar("json_schema", json.dumps(PERSON if value is None else value), "response_format")


def asking(name: str, grammar: Grammar, prompt: list[int] | None = None, **options: Any) -> Submit:
    return Submit(name, prompt or [1, 2, 3], SamplingParams(grammar=grammar, **{"max_tokens": 120, **options}))


def valid(text: str) -> bool:
    value = json.loads(text)
    return (
        set(value) <= {"name", "age", "tags"}
        and {"name", "age"} <= set(value)
        and len(value["name"]) <= 8
        and 0 <= value["age"] <= 150
        and set(value.get("tags", [])) <= {"a", "b"}
        and " " not in re.sub(r'"(\\.|[^"\\])*"', "", text)
    )


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_answers_belong_to_their_schema(model, tokenizer, overlap, temperature):
    engine = constrained_engine(model, overlap=overlap)
    requests = [asking(f"{i}", schema(), [i + 1], temperature=temperature, seed=i) for i in range(20)]
    answers = run(engine, *requests)
    for answer in answers.values():
        assert answer.finish == "stop"
        assert valid(tokenizer.decode(answer.ids)), tokenizer.decode(answer.ids)
    assert len({tuple(answer.ids) for answer in answers.values()}) > (10 if temperature else 1)
    engine.close()


@pytest.mark.parametrize(
    ("kind", "text", "pattern"),
    [
        ("regex", "[0-9]{3}-[a-z]+!", r"[0-9]{3}-[a-z]+!"),
        ("choice", '["yes", "no", "may\\"be"]', r'yes|no|may"be'),
        ("lark", 'start: "<" WORD ("," WORD)* ">"\nWORD: /[a-c]{1,2}/', r"<[a-c]{1,2}(,[a-c]{1,2})*>"),
        ("ebnf", 'root ::= item ("," item)*\nitem ::= [0-9] [0-9]?', r"[0-9]{1,2}(,[0-9]{1,2})*"),
        (
            "json_schema",
            '{"type":"array","items":{"type":"boolean"},"minItems":2}',
            r"\[(true|false)(,(true|false))+\]",
        ),
    ],
)
def test_each_kind_of_grammar(engine, tokenizer, kind, text, pattern):
    answers = run(engine, *(asking(f"{i}", Grammar(kind, text), [i + 1]) for i in range(5)))
    for answer in answers.values():
        said = tokenizer.decode(answer.ids)
        assert re.fullmatch(pattern, said) if answer.finish == "stop" else answer.finish == "length", said


TAGS = {
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer", "minimum": 0, "maximum": 9}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"const": "x"}, "end": ""},
        {"begin": "<|im_start|>", "schema": True, "end": "!"},
    ],
    "triggers": ["<f", "<|im_start|>"],
}


def allowed(engine: Engine, grammar: Grammar, tokens: list[int]) -> bool:
    """Whether an answer may begin with these tokens."""
    engine.submit(asking("probe", grammar))
    while (outcome := dict(engine.constraints.arrived()).get("probe")) is None:
        time.sleep(0.001)
    assert isinstance(outcome, Matcher), outcome
    engine.cancel("probe")
    engine.step()
    return outcome.state.followed.validate_tokens(tokens) == len(tokens)


def test_a_structural_tag_frees_text_up_to_its_triggers(engine, tokenizer):
    grammar = Grammar("structural_tag", json.dumps(TAGS))
    start = tokenizer.encode("<|im_start|>", special=True)

    def may(text: str, control: bool = False, after: str = "") -> bool:
        tokens = tokenizer.encode(text) + (start + tokenizer.encode(after) if control else [])
        return allowed(engine, grammar, [*tokens, END])

    for text in ("", "as you like {<", 'so: <f=a>7</f> and <f=b>"x" <f=a>3</f>'):
        assert may(text), text
    for text in ("<f", "<f=c>", "<f=a>12</f>", "<f=a>7</g>", "<f=a> 7</f>"):
        assert not may(text), text
    assert may("now", True, "[1,{}]!")
    assert not may("now", True, "nothing!")


@pytest.mark.parametrize(
    "changed", [{"triggers": ["<g"]}, {"triggers": ["<f"]}, {"structures": [{"begin": "<f"}]}, {"structures": 3}]
)
def test_structural_tags_that_make_no_sense(engine, changed):
    failure = run(engine, asking("a", Grammar("structural_tag", json.dumps({**TAGS, **changed}))))["a"].failure
    assert failure is not None
    assert failure.param == "grammar"


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("date", ["2024-02-29", "2000-02-29", "2023-02-28", "0004-02-29"], ["2023-02-29", "1900-02-29", "2024-04-31"]),
        ("time", ["23:59:59Z", "00:00:00.5+01:30"], ["10:00:60Z", "24:00:00Z", "10:00:00"]),
        (
            "date-time",
            ["2024-02-29T10:00:00Z"],
            ["2023-02-29T10:00:00Z", "2024-02-29T10:00:60Z", "0000-01-01T10:00:00Z"],
        ),
    ],
)
@pytest.mark.parametrize("more", [{}, {"allOf": [{"minLength": 1}]}, {"pattern": "^[0-9]"}])
def test_dates_and_times_that_there_are(engine, tokenizer, name, valid, invalid, more):
    for place in ({"type": "string", "format": name, **more}, {"$ref": "#/$defs/format"}):
        grammar = schema({"type": "array", "items": place, "$defs": {"format": {"type": "string", "format": name}}})
        for text in valid:
            assert allowed(engine, grammar, tokenizer.encode(f'["{text}"]')), text
        for text in invalid:
            assert not allowed(engine, grammar, tokenizer.encode(f'["{text}"]')), text


def test_a_property_may_be_called_like_a_keyword(engine, tokenizer):
    wanted = {
        "type": "object",
        "properties": {"format": {"const": "date"}, "enum": {"type": "string", "format": "date"}},
    }
    grammar = schema({**wanted, "required": ["format", "enum"], "additionalProperties": False})
    assert allowed(engine, grammar, tokenizer.encode('{"format":"date","enum":"2024-02-29"}'))
    assert not allowed(engine, grammar, tokenizer.encode('{"format":"date","enum":"2023-02-29"}'))


def test_white_space_is_as_asked(engine, tokenizer):
    text = json.dumps({"type": "array", "items": {"type": "integer", "maximum": 9, "minimum": 0}, "maxItems": 5})
    grammar = Grammar("json_schema", text, whitespace="[ ]{1,3}")
    said = [
        tokenizer.decode(a.ids) for a in run(engine, *(asking(f"{i}", grammar, [i + 1]) for i in range(20))).values()
    ]
    assert any(" " in text for text in said)
    assert all("    " not in text and isinstance(json.loads(text), list) for text in said)


def test_a_complete_answer_ends_without_another_step(engine):
    answer = run(engine, asking("a", Grammar("choice", '["yes"]')))["a"]
    assert (len(answer.ids), answer.finish, answer.stopped_by) == (3, "stop", None)
    assert engine.stats().generated_tokens == 3


def test_a_word_that_might_go_on_ends_with_the_end_token(engine):
    answers = run(engine, *(asking(f"{i}", Grammar("regex", "a*"), [i + 1], temperature=1.0) for i in range(5)))
    assert {answer.stopped_by for answer in answers.values() if answer.finish == "stop"} == {END}


def test_the_end_is_not_allowed_before_the_grammar_s(engine, tokenizer):
    """Of the null model's tokens one in eight ends an answer; here it cannot."""
    answer = run(engine, asking("a", Grammar("regex", "a{100}")))["a"]
    assert tokenizer.decode(answer.ids) == "a" * 100


def test_an_answer_that_does_not_fit_ends_for_length(engine):
    answer = run(engine, asking("a", Grammar("regex", "a{100}"), max_tokens=7))["a"]
    assert (len(answer.ids), answer.finish) == (7, "length")


def test_min_tokens_holds_where_the_grammar_goes_on_and_ends_where_it_does(engine, tokenizer):
    answers = run(
        engine,
        asking("more", Grammar("regex", "a+"), min_tokens=20, temperature=0),
        asking("less", Grammar("regex", "ab"), min_tokens=20, temperature=0),
    )
    assert len(answers["more"].ids) >= 20
    assert tokenizer.decode(answers["less"].ids) == "ab"


def test_a_bias_does_not_lead_out_of_the_grammar(engine, tokenizer):
    bias = {tokenizer.encode("x")[0]: 100.0, tokenizer.encode("b")[0]: 100.0}
    answer = run(engine, asking("a", Grammar("regex", "[abc]{10}"), logit_bias=bias))["a"]
    assert tokenizer.decode(answer.ids) == "b" * 10


def test_stop_tokens_end_a_constrained_answer_too(engine, tokenizer):
    answer = run(engine, asking("a", Grammar("regex", "aab{50}"), stop_token_ids=(tokenizer.encode("b")[0],)))["a"]
    assert (tokenizer.decode(answer.ids), answer.finish) == ("aa", "stop")


def baseline(engine: Engine, requests: list[Submit]) -> dict[str, Answer]:
    """Each request alone."""
    answers = {request.id: run(engine, request)[request.id] for request in requests}
    engine.close()
    return answers


def test_company_chunks_preemption_and_reuse_change_nothing(model):
    prompts = [[1 + i % 3] * (20 + 7 * i) for i in range(10)]
    requests = [asking(f"{i}", schema(), prompt, seed=i, temperature=1.5) for i, prompt in enumerate(prompts)]
    alone = baseline(constrained_engine(model), requests)
    for options in (
        {"max_num_batched_tokens": 16, "max_num_seqs": 16},  # prompts in chunks
        {"pages": 18},  # too few for all: some are computed again
        {"overlap": False, "prefix_caching": False},
    ):
        engine = constrained_engine(model, **{"max_num_seqs": 10, **options})
        together = run(engine, *requests)
        assert {name: answer.ids for name, answer in together.items()} == {n: a.ids for n, a in alone.items()}
        assert engine.stats().preemptions > 0 if "pages" in options else True
        assert all(answer.finish == alone[name].finish for name, answer in together.items())
        engine.close()


def test_constrained_and_free_requests_run_side_by_side(model):
    requests = [
        asking("schema", schema(), seed=1),
        Submit("free", [4, 5], SamplingParams(max_tokens=20, seed=2)),
        Submit("greedy", [6, 7], SamplingParams(max_tokens=20, temperature=0)),
        asking("regex", Grammar("regex", "[ab]{30}"), seed=3),
    ]
    alone = baseline(constrained_engine(model), requests)
    engine = constrained_engine(model)
    together = run(engine, *requests)
    assert {name: answer.ids for name, answer in together.items()} == {n: a.ids for n, a in alone.items()}
    engine.close()


def test_a_cancelled_request_leaves_the_others_alone(engine, tokenizer):
    for name in "ab":
        engine.submit(asking(name, schema(), temperature=1.0, seed=1))
    engine.submit(asking("c", schema({"title": "not compiled yet", **PERSON}), temperature=1.0, seed=1))
    engine.cancel("c")  # while it waits
    messages = []
    while not any(message.id == "b" for message in messages):
        messages += engine.step()
    engine.cancel("b")
    answers = run(engine)
    text = [message.tokens for message in messages if message.id == "a"] + [answers["a"].tokens]
    assert valid(tokenizer.decode(token.id for tokens in text for token in tokens))
    assert answers["b"].finish == "cancelled"


REFUSED = [
    (schema({"not": {"type": "string"}}), '"not"'),
    (schema({"type": "array", "uniqueItems": True}), '"uniqueItems"'),
    (schema({"type": "object", "properties": {"a": {"if": {}, "then": {}}}}), '"if", "then"'),
    (schema({"type": "string", "format": "no-such"}), "no-such"),
    (schema({"$ref": "https://example.com/schema"}), "example.com"),
    (schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
    (schema({"x-guidance": {"lenient": True}, "not": {}}), '"not"'),
    (schema({"$schema": "http://json-schema.org/draft-03/schema#", "disallow": "string"}), "Draft 3"),
    (schema({"items": {"format": "unknown"}}), "unknown"),
    (Grammar("regex", "a{1000000}", "response_format"), "too "),
    (schema([1]), "must be a JSON object"),
    (Grammar("json_schema", "{", "response_format"), "not valid JSON"),
    (Grammar("regex", "(", "response_format"), "unclosed group"),
    (Grammar("choice", "[]", "response_format"), "list of strings"),
    (Grammar("choice", '["a", 1]', "response_format"), "list of strings"),
    (Grammar("lark", "start: nothing", "response_format"), "nothing"),
    (Grammar("lark", "start: <|no_such|>", "response_format"), "no_such"),
    (Grammar("ebnf", "root ::= ((", "response_format"), ""),
    (Grammar("constraint", '{"name": "no-such"}', "response_format"), "no constraint 'no-such' is installed"),
    (Grammar("constraint", "[]", "response_format"), "must name a constraint"),
]


@pytest.mark.parametrize(("grammar", "why"), REFUSED, ids=[f"{g.kind}-{why}" for g, why in REFUSED])
def test_what_cannot_be_enforced_is_refused_by_name(engine, tokenizer, grammar, why):
    answers = run(engine, asking("bad", grammar), asking("good", schema()))
    failure = answers["bad"].failure
    assert failure is not None
    assert (failure.kind, failure.param) == ("RequestError", "response_format")
    assert failure.message.startswith("response_format")
    assert why in failure.message
    assert valid(tokenizer.decode(answers["good"].ids))


def test_an_engine_without_a_vocabulary_refuses_grammars():
    engine = null_engine()
    failure = run(engine, Submit("a", [1], SamplingParams(grammar=schema())))["a"].failure
    assert failure is not None
    assert failure.kind == "UnsupportedError"
    engine.close()


def test_equal_grammars_are_compiled_once(engine):
    run(engine, *(asking(f"{i}", schema()) for i in range(12)))
    run(engine, *(asking(f"{i}", schema()) for i in range(3)))
    stats = engine.stats()
    assert (stats.constrained_requests, stats.grammars_compiled) == (15, 1)
    assert stats.grammar_seconds > 0
    assert stats.mask_seconds > 0


def test_requests_that_wait_for_their_grammar_count_as_waiting(model):
    engine = constrained_engine(model, max_waiting=2)
    for name in "ab":
        engine.submit(asking(name, schema()))
    assert engine.stats().waiting == 2
    with pytest.raises(QueueFullError):
        engine.submit(asking("c", schema()))
    assert all(answer.finish == "stop" for answer in run(engine).values())
    engine.close()


def test_a_grammar_that_takes_too_long_is_refused(engine, monkeypatch):
    monkeypatch.setattr("trimaran.engine.constraints.constraints.READY_SECONDS", 0.01)
    begun, done = threading.Event(), threading.Event()

    def slow() -> TokenTable:
        begun.set()
        done.wait(10)
        raise UnsupportedError("too late")

    monkeypatch.setattr(engine.constraints, "_read_table", slow)
    engine.submit(asking("a", schema()))
    begun.wait(10)
    failure = run(engine, Submit("free", [1], SamplingParams(max_tokens=3)))["a"].failure
    done.set()
    assert failure is not None
    assert failure.code == "grammar_timeout"


def test_a_grammar_that_is_slow_to_begin_with_is_refused(engine, monkeypatch):
    monkeypatch.setattr("trimaran.engine.constraints.grammars.MAX_FIRST_SECONDS", 0.0)
    failure = run(engine, asking("a", schema()))["a"].failure
    assert failure is not None
    assert failure.code == "grammar_too_complex"


def test_a_long_text_that_is_forced_comes_out_whole(engine, tokenizer):
    """Longer than what is tokenised of it at once."""
    text = "".join(chr(97 + (i * i) % 26) for i in range(2500))
    grammar = schema({"const": text})
    assert allowed(engine, grammar, tokenizer.encode(f'"{text}"'))
    assert not allowed(engine, grammar, tokenizer.encode(f'"{text[:-1]}"'))


def test_ignoring_the_end_contradicts_a_grammar():
    with pytest.raises(RequestError, match="ignore_eos"):
        SamplingParams(grammar=schema(), ignore_eos=True)


def test_pools_give_the_answers_of_one_engine(model):
    """The first token is chosen where the prompt is computed, the others elsewhere."""
    requests = [asking(f"{i}", schema(), [1 + i] * (10 + 9 * i), seed=i, temperature=1.5) for i in range(6)]
    requests.append(asking("short", Grammar("choice", '["x"]'), [1] * 20))
    alone = baseline(constrained_engine(model), requests)
    prefill, decode = (constrained_engine(model, role=role) for role in ("prefill", "decode"))
    assert isinstance(prefill, PrefillEngine)
    assert isinstance(decode, DecodeEngine)
    answers = Pair(prefill, decode).run(*requests)
    assert {name: (a.ids, a.finish) for name, a in answers.items()} == {n: (a.ids, a.finish) for n, a in alone.items()}
    for engine in (prefill, decode):
        engine.close()
