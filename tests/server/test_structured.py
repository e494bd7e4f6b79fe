"""Answers that must look like something: every way to ask for it, streamed or whole, and what is refused."""

import json
import re
from typing import Any

import httpx
import openai
import pydantic
import pytest

from .running import NAME, Running, eventually

CHAT = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "seed": 3}
TEXT = {"model": NAME, "prompt": "Hi", "max_tokens": 400, "seed": 3}
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
BODIES: dict[str, dict[str, Any]] = {"chat": CHAT, "text": TEXT}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": {"type": "integer", "minimum": 0, "maximum": 9}, "end": "</f>"}],
    "triggers": ["<"],
}
UNTYPED = json.dumps({name: value for name, value in TAG.items() if name != "type"})


def is_person(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"name", "age"} and len(value["name"]) <= 9 and 0 <= value["age"] <= 99


def matches(pattern: str):
    return lambda text: re.fullmatch(pattern, text) is not None


def named(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


ASKED = {
    "json_schema": ({"response_format": named(PERSON, strict=True)}, is_person),
    "json_schema that is not strict": ({"response_format": named(PERSON, strict=False, description="who")}, is_person),
    "json_object": ({"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
    "guided_json": ({"guided_json": PERSON}, is_person),
    "guided_json as text": ({"guided_json": json.dumps(PERSON)}, is_person),
    "guided_json with white space": (
        {"guided_json": {"const": [1, 2]}, "guided_whitespace_pattern": " "},
        matches(r"\[ ?1 ?, ?2 ?\]"),
    ),
    "guided_regex": ({"guided_regex": r"[a-z]+@[a-z]+\.com"}, matches(r"[a-z]+@[a-z]+\.com")),
    "guided_choice": ({"guided_choice": ["a b", "c\n"]}, matches("a b|c\n")),
    "guided_grammar": ({"guided_grammar": 'start: "x" NUMBER\nNUMBER: /[0-9]{2}/'}, matches("x[0-9]{2}")),
    "structured_outputs.json": ({"structured_outputs": {"json": PERSON}}, is_person),
    "structured_outputs.regex": ({"structured_outputs": {"regex": "ab?"}}, matches("ab?")),
    "structured_outputs.choice": ({"structured_outputs": {"choice": ["x", "y"]}}, matches("x|y")),
    "structured_outputs.grammar": ({"structured_outputs": {"grammar": 'root ::= "x" "y"?'}}, matches("xy?")),
    "structured_outputs.json_object": (
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
        lambda text: isinstance(json.loads(text), dict),
    ),
    "structural_tag": (
        {"response_format": TAG, "logit_bias": {"28": 4}},
        lambda text: re.sub("<f>[0-9]</f>", "", text).count("<") == 0,
    ),
    "structural_tag as text": (
        {"structured_outputs": {"structural_tag": json.dumps(TAG)}, "logit_bias": {"28": 4}},
        lambda text: re.sub("<f>[0-9]</f>", "", text).count("<") == 0,
    ),
}


def post(server: Running, kind: str, **more: Any) -> httpx.Response:
    return server.http.post(PATHS[kind], json={**BODIES[kind], **more})


def streamed(response: httpx.Response) -> dict[int, str]:
    """The text of every choice of a stream."""
    texts: dict[int, str] = {}
    for line in response.text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            texts[choice["index"]] = texts.get(choice["index"], "") + (text or "")
    return texts


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_as_asked_streamed_or_whole(server, kind, name):
    fields, belongs = ASKED[name]
    for temperature in (0, 1.5):
        whole = post(server, kind, n=3, temperature=temperature, **fields)
        assert whole.status_code == 200, whole.text
        texts = {}
        for choice in whole.json()["choices"]:
            texts[choice["index"]] = choice["message"]["content"] if kind == "chat" else choice["text"]
            assert choice["finish_reason"] == "length" or belongs(texts[choice["index"]]), texts
        assert streamed(post(server, kind, n=3, temperature=temperature, stream=True, **fields)) == texts


def test_a_format_of_text_asks_for_nothing(server):
    free, text = post(server, "chat"), post(server, "chat", response_format={"type": "text"})
    assert free.json()["choices"] == text.json()["choices"]


def test_logprobs_are_those_of_the_model(server):
    """Not of what the grammar has left of its distribution: as many tokens would be likely without it."""
    [choice] = post(server, "chat", guided_choice=["yes"], logprobs=True, top_logprobs=2).json()["choices"]
    tokens = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == "yes"
    assert all(token["logprob"] < -0.1 for token in tokens)
    assert all(token["top_logprobs"][0]["logprob"] > token["logprob"] for token in tokens)


def test_an_answer_that_is_cut_says_so(server):
    [choice] = post(server, "chat", response_format=named(PERSON), max_tokens=5).json()["choices"]
    assert choice["finish_reason"] == "length"


SCHEMA = "response_format.json_schema.schema"
ENDLESS = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}}
LOOSE = "disable_additional_properties"
REFUSED = [
    ({"response_format": named({"not": {}})}, SCHEMA, '"not"'),
    ({"response_format": named({"properties": {"a": {"uniqueItems": True}}})}, SCHEMA, "uniqueItems"),
    ({"response_format": named({"type": "string", "format": "color"})}, SCHEMA, "color"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, SCHEMA, "required"),
    ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema", "not a field"),
    ({"response_format": {**TAG, "triggers": ["{"]}}, "response_format", "trigger"),
    ({"guided_json": "{"}, "guided_json", "not valid JSON"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
    ({"guided_grammar": "start: nowhere"}, "guided_grammar", "nowhere"),
    ({"guided_choice": []}, "guided_choice", "empty"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "send one of them"),
    ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json", "send one of them"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "guided_regex"),
    ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "JSON"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "send one of them"),
    ({"structured_outputs": {LOOSE: True}}, f"structured_outputs.{LOOSE}", "not supported"),
    ({"structured_outputs": {"json_schema": {}}}, "structured_outputs.json_schema", "not a field"),
    ({"structural_tag": "nothing"}, "structural_tag", "structural tag"),
    ({"structural_tag": "[]"}, "structural_tag", "must be a JSON object"),
    ({"structural_tag": json.dumps({**TAG, "type": None})}, "structural_tag", "type: input should be"),
    ({"structural_tag": json.dumps({**TAG, "triggers": []})}, "structural_tag", "triggers is empty"),
    ({"structural_tag": UNTYPED}, "structural_tag", "type is required"),
    ({"guided_json": {"$ref": "#"}}, "guided_json", 'uses a rule or "$ref" that leads to nothing but itself'),
    ({"guided_json": {"$ref": "#/a"}}, "guided_json", "uses \"$ref\" to '/a'"),
    ({"guided_json": {"$ref": "http://a.example/b"}}, "guided_json", "put what it names into"),
    ({"guided_json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "guided_json", 'say "anyOf"'),
    ({"guided_grammar": 'root ::= "a" root'}, "guided_grammar", "without an end"),
    ({"guided_json": ENDLESS}, "guided_json", "without an end"),
    ({"constraint": {"name": "no-such"}}, "constraint", "no-such"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param", "why"), REFUSED, ids=[f"{param}-{why}" for _, param, why in REFUSED])
def test_what_cannot_be_enforced_is_a_400_that_names_it(server, stream, fields, param, why):
    for kind in PATHS:
        response = post(server, kind, stream=stream, **fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert why in error["message"]
        assert param in error["message"]


def test_the_official_client_parses_what_comes(server):
    class Person(pydantic.BaseModel):
        name: str
        age: int
        friends: list[str]

    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        answer = client.chat.completions.parse(
            model=NAME, messages=[{"role": "user", "content": "Who?"}], response_format=Person, seed=5, temperature=1
        )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_metrics_count_constrained_requests(server):
    before = server.metric("trimaran_constrained_requests_total")
    post(server, "chat", guided_regex="[abc]{9}")
    eventually(lambda: server.metric("trimaran_constrained_requests_total") > before)
    for name in ("trimaran_grammars_compiled_total", "trimaran_grammar_seconds_total", "trimaran_mask_seconds_total"):
        assert server.metric(name) > 0
