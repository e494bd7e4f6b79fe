"""Calls of tools through the official client, forced and free, by a model that knows nothing: the grammar does it."""

import json

import jsonschema
import openai
import pytest

from .running import NAME

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
LOOK = {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now"}}
SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["clear", "grey"]}},
    "required": ["sky"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "sky", "schema": SCHEMA}}
HELLO = [{"role": "user", "content": "Hello!"}]
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture
def client(tooled):
    with openai.OpenAI(base_url=tooled.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


def ask(client, **options):
    options = {"tools": [LOOK, NOW], "max_tokens": 400, "extra_body": QUIET, **options}
    return client.chat.completions.create(model=NAME, messages=HELLO, **options)


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_is_sound(client, seed):
    answer = ask(client, tool_choice="required", parallel_tool_calls=False, seed=seed)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name in ("look", "now")
    jsonschema.validate(arguments, PARAMETERS if call.function.name == "look" else {"const": {}})


def test_a_named_call_is_of_that_function_and_the_only_one(client):
    named = {"type": "function", "function": {"name": "look"}}
    for seed in range(3):
        answer = ask(client, tool_choice=named, seed=seed, n=2)
        for choice in answer.choices:
            (call,) = choice.message.tool_calls
            assert call.function.name == "look"
            jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


def test_some_of_the_tools_can_be_allowed(client):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = ask(client, tool_choice=choice, parallel_tool_calls=False)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["now"]


def test_a_streamed_call_is_the_whole_one(client):
    options = {"tool_choice": "required", "parallel_tool_calls": False, "seed": 7}
    whole = ask(client, **options).choices[0]
    with client.chat.completions.stream(
        model=NAME, messages=HELLO, tools=[LOOK, NOW], max_tokens=400, extra_body=QUIET, **options
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert final.finish_reason == whole.finish_reason == "tool_calls"
    (one,), (other,) = final.message.tool_calls, whole.message.tool_calls
    assert (one.function.name, one.function.arguments) == (other.function.name, other.function.arguments)


def test_a_call_or_an_answer_in_the_schema(client):
    seen = set()
    for seed in range(12):
        answer = ask(client, tools=[NOW], response_format=FORMAT, parallel_tool_calls=False, seed=seed)
        message = answer.choices[0].message
        if message.tool_calls:
            assert message.tool_calls[0].function.arguments == "{}"
            assert message.content is None
        else:
            jsonschema.validate(json.loads(message.content), SCHEMA)
        seen.add(bool(message.tool_calls))
    assert seen == {True, False}


@pytest.mark.parametrize("tools", [[NOW], None])
def test_an_answer_in_a_schema_may_follow_a_thought(client, tools):
    thinks = {"chat_template_kwargs": {"enable_thinking": True}, **({"parallel_tool_calls": False} if tools else {})}
    seen = set()
    for seed in range(24):
        answer = ask(client, tools=tools or [], response_format=FORMAT, extra_body=thinks, max_tokens=80, seed=seed)
        message, thought = answer.choices[0].message, answer.usage.completion_tokens_details.reasoning_tokens
        seen.add(thought > 0)
        if message.content:
            jsonschema.validate(json.loads(message.content), SCHEMA)
        assert message.content or message.tool_calls or thought == 80  # nothing ends this model's thoughts
    assert seen == {True, False}


def test_none_calls_nothing(client):
    for seed in range(3):
        answer = ask(client, tool_choice="none", seed=seed, max_tokens=30)
        assert answer.choices[0].message.tool_calls is None


def test_free_answers_may_say_anything(client):
    answer = ask(client, max_tokens=8, seed=1)
    assert answer.choices[0].finish_reason in ("length", "stop")


def test_what_cannot_be_enforced_is_refused_by_name(client):
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}
    loose = {"type": "function", "function": {"name": "odd", "parameters": odd}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as refused:
        ask(client, tools=[LOOK, tool])
    assert refused.value.param == "tools[1].function.parameters"
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        ask(client, tools=[loose], tool_choice="required")
    ask(client, tools=[loose], max_tokens=2)


def test_calls_are_counted(client, tooled):
    before = tooled.metric("trimaran_tool_calls_total")
    ask(client, tool_choice="required", parallel_tool_calls=False)
    assert tooled.metric("trimaran_tool_calls_total") == before + 1
