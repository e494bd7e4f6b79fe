"""What grammars let through is what parsers take: transcripts of every family, walked through compiled grammars."""

from functools import lru_cache

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from trimaran.base.errors import RequestError
from trimaran.base.grammar import MAX_GRAMMAR_LENGTH, Grammar
from trimaran.engine.constraints.grammars import compile_grammar
from trimaran.engine.constraints.tokenizer import grammar_tokenizer
from trimaran.engine.constraints.tokens import TokenTable
from trimaran.text.tools.answer_grammar import Offered, Wanted

from .parsing import answer_format, ids, run, tokenizer
from .transcripts import FAMILIES, GLM47, HERMES, OFFERED, QWEN3_CODER

ALL = tuple(Offered(name, schema, True, f"tools[{at}]") for at, (name, schema) in enumerate(OFFERED.items()))
ANSWER = Grammar("json_schema", '{"type":"object","properties":{"sky":{"type":"string"}},"required":["sky"]}', "f")


def label(value):
    return getattr(value, "format", None)


@lru_cache(maxsize=64)
def vocabulary(family):
    tokens = tokenizer(family)
    control = tokens.special_ids | {token.id for token in tokens.control}
    table = [tokens.token_bytes(i) for i in range(tokens.vocab_size)]
    return grammar_tokenizer(TokenTable(table, control, tokens.eos_ids, tokens.encode))


@lru_cache(maxsize=256)
def compiled(family, grammar) -> LLMatcher:
    return compile_grammar(grammar, vocabulary(family))


def grammar_of(family, thinking="no", **wanted):
    wanted = {"offered": ALL, "shown": True, **wanted}
    grammar = answer_format(family).grammar(Wanted(**wanted), thinking)
    assert grammar is not None
    return grammar


def allows(family, text, thinking="no", **wanted):
    """Whether the text is a whole answer."""
    matcher = compiled(family, grammar_of(family, thinking, **wanted)).deep_copy()
    for token in ids(family, text):
        matcher.compute_bitmask()  # as an engine does: what a matcher may cost is limited from mask to mask
        if matcher.validate_tokens([token]) != 1 or not matcher.consume_token(token):
            return False
    return matcher.is_accepting()


GOOD = [(family, transcript) for family in FAMILIES for transcript in family.good]


@pytest.mark.parametrize(("family", "transcript"), GOOD, ids=label)
def test_transcripts_are_let_through(family, transcript):
    assert allows(family, transcript.text, transcript.thinking) != transcript.loose


@pytest.mark.parametrize(("family", "text"), [(f, text) for f in FAMILIES for text in f.bad], ids=label)
def test_malformed_calls_are_not(family, text):
    assert not allows(family, text)
    assert not allows(family, "Before. " + text)


@pytest.mark.parametrize("family", FAMILIES, ids=label)
def test_a_call_that_must_come_is_the_first_thing(family):
    for transcript in family.good:
        if transcript.loose or not transcript.calls:
            continue
        bare = not (transcript.content or transcript.thought)
        assert allows(family, transcript.text, transcript.thinking, must=True) == bare or transcript.thought
    assert not allows(family, "", must=True)
    assert not allows(family, "Hello", must=True)


@pytest.mark.parametrize("family", FAMILIES, ids=label)
def test_an_answer_that_must_not_call_is_free_text(family):
    assert allows(family, "Hello", offered=())
    for transcript in family.good:
        if transcript.calls and not transcript.loose:
            bare = transcript.text.startswith("{")
            assert allows(family, transcript.text, offered=()) == bare


@pytest.mark.parametrize("family", FAMILIES, ids=label)
def test_only_what_is_offered_can_be_called(family):
    for transcript in family.good:
        if transcript.calls and not transcript.loose:
            names = {name for name, _ in transcript.calls}
            for one in ALL:
                offered = tuple(other for other in ALL if other.name != one.name)
                assert allows(family, transcript.text, transcript.thinking, offered=offered) == (one.name not in names)


@pytest.mark.parametrize("family", FAMILIES, ids=label)
def test_one_call_where_calls_are_not_to_be_parallel(family):
    for transcript in family.good:
        if transcript.calls and not transcript.loose:
            few = len(transcript.calls) == 1
            assert allows(family, transcript.text, transcript.thinking, several=False) == few


@pytest.mark.parametrize("family", FAMILIES, ids=label)
@pytest.mark.parametrize("thinking", ["no", "maybe", "begun"])
def test_an_answer_in_a_schema_or_a_call(family, thinking):
    marks = answer_format(family).reasoning
    if marks is None and thinking != "no":
        return
    thought = (
        "" if marks is None or thinking == "no" else (marks.begin if thinking == "maybe" else "") + "Hm." + marks.end
    )
    wanted = {"answer": ANSWER, "thinking": thinking}
    assert allows(family, thought + '{"sky":"clear"}', **wanted)
    assert not allows(family, thought + "clear", **wanted)
    assert allows(family, thought + '\n{"sky":"clear"}', **wanted) == bool(thought)
    assert not allows(family, thought + '{"sky":1}', **wanted)
    text = next(t.text for t in family.good if t.calls and not t.loose)
    form = answer_format(family).tools
    call = text if form.bare else text[text.index(form.begin.strip()) :]
    assert allows(family, thought + call, **wanted)
    assert not allows(family, thought + '{"sky":"clear"}', **wanted, must=True)
    assert allows(family, thought + '{"sky":"clear"}', **wanted, offered=())
    assert allows(family, thought + '{"sky":"clear"}', **wanted, offered=(), shown=False)
    assert not allows(family, thought + "clear", **wanted, offered=(), shown=False)


@pytest.mark.parametrize(
    ("answer", "good", "bad"),
    [
        (Grammar("regex", "a/b|[/]"), "a/b", "ab"),
        (Grammar("choice", '["yes","<think>"]'), "<think>", "no"),
        (Grammar("lark", 'start: "x" {2,3}\n'), "xxx", "x"),
        (Grammar("ebnf", 'root ::= "x" y\ny ::= "z"\n'), "xz", "x"),
        (Grammar("json_schema", "true"), "[1]", "[1"),
        (Grammar("json_schema", '{"x-guidance":{"lenient":true},"type":"integer"}', whitespace=" ?"), "1", "x"),
    ],
)
def test_every_kind_of_answer_can_follow_a_thought(answer, good, bad):
    wanted = {"answer": answer, "offered": (), "shown": False, "thinking": "begun"}
    assert allows(HERMES, "Hm.</think>\n\n" + good, **wanted)
    assert not allows(HERMES, "Hm.</think>\n\n" + bad, **wanted)


def test_a_constraint_stands_alone():
    answer = Grammar("constraint", "{}", "constraint")
    with pytest.raises(RequestError, match="constraint cannot be combined"):
        grammar_of(HERMES, answer=answer)


def test_what_asks_for_nothing_needs_no_grammar():
    form = answer_format(HERMES)
    assert form.grammar(Wanted(), "maybe") is None
    assert form.grammar(Wanted(answer=ANSWER), "no") is ANSWER


PARAMETERS = [
    ({"type": "string", "enum": ["a", "b c"]}, "b c", "b"),
    ({"const": "x"}, "x", "y"),
    ({"type": "string", "pattern": "^[a-c/]+$"}, "a/c", "d"),
    ({"type": "string", "pattern": "b"}, "abc", "ac"),
    ({"type": "string", "minLength": 2, "maxLength": 3}, "ab", "a"),
    ({"type": "string", "maxLength": 3}, "abc", "abcd"),
    ({"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]}, "null", ""),
    ({"type": ["string", "null"]}, "null", None),
    ({"enum": ["a", 1, None]}, "1", "2"),
    ({"type": "integer", "maximum": 9}, "9", "10"),
    ({"$ref": "#/$defs/short"}, "abc", "abcd"),
    ({"anyOf": [{"$ref": "#/$defs/low"}, {"type": "null"}]}, "null", "30"),
    ({"type": "string", "format": "date"}, "2028-02-29", "2027-02-29"),
    ({"type": "string", "format": "date-time"}, "2027-02-28T23:59:59.5Z", "2027-02-28T24:00:00Z"),
    ({"type": "string", "maxLength": 1000}, "a" * 1000, "a" * 1001),
    ({"$ref": "#/$defs/low"}, "3", "30"),
    ({"type": "array", "items": {"$ref": "#/$defs/low"}}, "[3, 4]", "[3, 40]"),
    ({"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}, '{"b": true}', "{}"),
    ({"anyOf": [{"type": "string"}, {"type": "object", "required": ["q"]}]}, "text", '{"p": 1}'),
]


@pytest.mark.parametrize(("schema", "good", "bad"), PARAMETERS)
@pytest.mark.parametrize("family", [QWEN3_CODER, GLM47], ids=label)
def test_arguments_without_quotes_follow_the_schema(family, schema, good, bad):
    parameters = {
        "type": "object",
        "properties": {"a": schema},
        "required": ["a"],
        "$defs": {"low": {"type": "integer", "maximum": 9}, "short": {"type": "string", "maxLength": 3}},
    }
    strict = schema.get("anyOf", [{}])[0].get("minLength") is None
    offered = (Offered("f", parameters, strict, "tools[0]"),)

    def call(value):
        if family is GLM47:
            return f"<tool_call>f<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>"
        return f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"

    assert allows(family, call(good), offered=offered)
    assert bad is None or not allows(family, call(bad), offered=offered) or not strict
    ((_, arguments),) = run(family, ids(family, call(good)), offered={"f": parameters}).parsed
    jsonschema.validate(arguments, parameters)


@pytest.mark.parametrize("family", [QWEN3_CODER, GLM47], ids=label)
@pytest.mark.parametrize("least", [None, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("most", [None, 4, 3, 2, 1])
def test_as_many_arguments_as_the_schema_says(family, least, most):
    names = ("a", "b", "c", "d")
    limits = {"minProperties": least, "maxProperties": most}
    limits = {key: value for key, value in limits.items() if value is not None}
    parameters = {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "required": ["c"]}
    offered = (Offered("f", parameters | limits, True, "tools[0]"),)
    if least is not None and most is not None and least > most:
        with pytest.raises(RequestError, match="minProperties"):
            grammar_of(family, offered=offered)
        return

    def call(written):
        if family is GLM47:
            inner = "".join(f"<arg_key>{name}</arg_key><arg_value>1</arg_value>" for name in written)
            return f"<tool_call>f{inner}</tool_call>"
        inner = "".join(f"<parameter={name}>\n1\n</parameter>\n" for name in written)
        return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"

    for chosen in range(16):
        written = [name for place, name in enumerate(names) if chosen >> place & 1]
        valid = "c" in written and (least or 0) <= len(written) <= (4 if most is None else most)
        assert allows(family, call(written), offered=offered) == valid, written


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"properties": {"a": {"type": "string", "format": "email"}}}, "format"),
        ({"properties": {"a": {"type": "string", "format": "date", "maxLength": 3}}}, "format"),
        ({"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "maxProperties": 1}, "maxProperties"),
        ({"properties": {"a": {}}, "minProperties": 1e999}, "minProperties"),
        ({"properties": {"a": {"type": "string", "pattern": "a$b"}}}, "pattern"),
        ({"properties": {"a": {"type": "string", "maxLength": 100_000}}}, "length"),
        ({"properties": {"a\n": {"type": "string"}}}, "called"),
        ({"properties": {"a": {"enum": ["</parameter>"]}}}, "value"),
        ({"properties": {}, "minProperties": 1}, "minProperties"),
        ({"anyOf": [{"required": ["a"]}]}, "anyOf"),
    ],
)
def test_what_a_format_cannot_enforce_is_refused_by_name_or_passed_over(parameters, named):
    with pytest.raises(RequestError, match=named) as refused:
        grammar_of(QWEN3_CODER, offered=(Offered("f", parameters, True, "tools[3].function.parameters"),))
    assert refused.value.param == "tools[3].function.parameters"
    grammar_of(QWEN3_CODER, offered=(Offered("f", parameters, False, ""),))


def test_what_json_schema_cannot_enforce_is_refused_unless_the_tool_is_not_strict():
    for part, named in (({"uniqueItems": True}, "uniqueItems"), ({"items": {"pattern": "(?=a)"}}, "look-around")):
        parameters = {"type": "object", "properties": {"a": {"type": "array", **part}}}
        with pytest.raises(RequestError, match=f"f.parameters uses .*{named}"):
            grammar_of(HERMES, offered=(Offered("f", parameters, True, "f.parameters"),))
        call = '<tool_call>\n{"name": "f", "arguments": {"a": [1, 1]}}\n</tool_call>'
        assert allows(HERMES, call, offered=(Offered("f", parameters, False, ""),))


@pytest.mark.parametrize("family", FAMILIES, ids=label)
@given(data=st.data())
def test_whatever_a_grammar_lets_through_is_parsed(family, data):
    """A random walk: any token that the mask allows, with some weight on what ends things."""
    thinking = data.draw(st.sampled_from(["no", "begun"] if family.reasoning else ["no"]))
    must = data.draw(st.booleans())
    matcher = compiled(family, grammar_of(family, thinking, must=must, several=False)).deep_copy()
    tokens = walk(matcher, family, data.draw(st.randoms(use_true_random=False)))
    answer = run(family, tokens, thinking=thinking, enforced=data.draw(st.booleans()))
    if matcher.is_accepting():
        assert answer.malformed == []
        for name, arguments in answer.parsed:
            jsonschema.validate(arguments, OFFERED[name])
        assert answer.calls or not must


def walk(matcher, family, random, most=400):
    tokens = []
    ends = tokenizer(family).eos_ids
    while len(tokens) < most and not matcher.is_stopped():
        forced = matcher.compute_ff_tokens()
        if forced:
            matcher.consume_tokens(forced)
            tokens += forced
            continue
        bias = matcher.compute_logit_bias()
        allowed = [token for token, value in enumerate(bias) if value and token not in ends]
        if not allowed or (matcher.is_accepting() and random.random() < 0.2):
            break
        likely = [token for token in allowed if token >= 256 or token in b'<>"}]/[\n{']
        token = random.choice(likely if likely and random.random() < 0.6 else allowed)
        assert matcher.consume_token(token)
        tokens.append(token)
    return [token for token in tokens if token not in ends]


def test_tools_beyond_a_grammar_go_without_one_where_nothing_must_hold():
    long = {"type": "object", "properties": {"a": {"enum": ["x" * MAX_GRAMMAR_LENGTH]}}}
    form = answer_format(HERMES)
    loose, strict = (Offered("f", long, strict, "tools[0]") for strict in (False, True))
    assert form.grammar(Wanted((loose,), shown=True), "no") is None
    for wanted in (Wanted((strict,), shown=True), Wanted((loose,), shown=True, answer=ANSWER)):
        with pytest.raises(RequestError, match="characters, the limit is") as refused:
            form.grammar(wanted, "no")
        assert refused.value.param == "tools"
