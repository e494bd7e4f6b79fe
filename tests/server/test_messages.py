"""Anthropic's Messages API through its official client: whole and streamed, tools, thoughts, schemas, counts."""

import json

import anthropic
import jsonschema
import pytest

from .running import NAME, running

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
LOOK = {"name": "look", "description": "Looks.", "input_schema": PARAMETERS}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}, "cache_control": {"type": "ephemeral"}}
HELLO = [{"role": "user", "content": "Hello!"}]
GREEDY = {"temperature": 0}  # which newer clients have no argument for
QUIET = {"thinking": {"type": "disabled"}}
SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["clear", "grey"]}},
    "required": ["sky"],
    "additionalProperties": False,
}


@pytest.fixture
def client(tooled):
    with anthropic.Anthropic(base_url=tooled.url, api_key="unused", max_retries=0) as client:
        yield client


def ask(client, **options):
    return client.messages.create(**{"model": NAME, "max_tokens": 300, "messages": HELLO, **QUIET, **options})


def test_answers(client):
    message = ask(client, max_tokens=12, system="Be brief.")
    assert message.id.startswith("msg")
    assert (message.type, message.role, message.model) == ("message", "assistant", NAME)
    assert message.stop_reason in ("max_tokens", "end_turn")
    assert message.usage.output_tokens <= 12
    assert [block.type for block in message.content] in (["text"], [])
    again = ask(client, max_tokens=1, system="Be brief.")
    assert again.usage.cache_read_input_tokens > 0
    total = again.usage.input_tokens + again.usage.cache_read_input_tokens
    assert total == message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_counts_tokens(client):
    options = {"model": NAME, "messages": HELLO, "system": [{"type": "text", "text": "Be brief."}], "tools": [LOOK]}
    count = client.messages.count_tokens(**options, **QUIET).input_tokens
    usage = ask(client, **options, max_tokens=1).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens
    assert count > client.messages.count_tokens(model=NAME, messages=HELLO, **QUIET).input_tokens


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look"}])
def test_a_call_is_sound_whole_and_streamed(client, choice):
    options = {"tools": [LOOK, NOW], "tool_choice": {**choice, "disable_parallel_tool_use": True}, "extra_body": GREEDY}
    message = ask(client, **options)
    (block,) = message.content
    assert message.stop_reason == "tool_use"
    assert block.type == "tool_use"
    jsonschema.validate(block.input, PARAMETERS if block.name == "look" else {"const": {}})
    assert block.name == "look" or choice["type"] == "any"
    with client.messages.stream(**{"model": NAME, "max_tokens": 300, "messages": HELLO, **QUIET, **options}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert "input_json" in kinds
    assert (final.content[0].name, final.content[0].input) == (block.name, block.input)
    assert (final.stop_reason, final.usage.output_tokens) == (message.stop_reason, message.usage.output_tokens)


def test_a_conversation_with_calls_and_results(client, tooled):
    turns = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "A tool.", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_1", "name": "look", "input": {"city": "Bern", "days": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "clouds"}]},
                {"type": "tool_result", "tool_use_id": "call_2", "content": "lost", "is_error": True},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    call = {"name": "look", "arguments": json.dumps({"city": "Bern", "days": 1})}
    chat = [
        *HELLO,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "A tool.",
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "clouds"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Error: lost"},
        {"role": "user", "content": "So?"},
    ]
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
    quiet = {"enable_thinking": False}
    body = {"model": NAME, "messages": chat, "tools": [tool], "chat_template_kwargs": quiet}
    options = {"messages": turns, "tools": [LOOK]}
    count = client.messages.count_tokens(model=NAME, **options, **QUIET).input_tokens
    assert count == tooled.http.post("/tokenize", json=body).json()["count"]
    assert ask(client, **options, max_tokens=2).usage.output_tokens <= 2


def test_a_thought_is_a_block_of_its_own(client):
    for seed in range(8):
        message = ask(
            client,
            messages=[{"role": "user", "content": f"Hello {seed}"}],
            output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
            thinking={"type": "adaptive"},
            max_tokens=40,
        )
        (block,) = message.content
        if block.type == "text":
            jsonschema.validate(json.loads(block.text), SCHEMA)
        else:
            assert block.type == "thinking"
            assert message.stop_reason == "max_tokens"


def test_a_stop_sequence_is_named(client):
    text = ask(client, max_tokens=40, extra_body=GREEDY).content[0].text
    message = ask(client, max_tokens=40, extra_body=GREEDY, stop_sequences=["never", text[5:7]])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[5:7])


def test_a_stream_says_what_the_whole_answer_says(client):
    whole = ask(client, max_tokens=40, extra_body=GREEDY)
    with client.messages.stream(model=NAME, max_tokens=40, extra_body=GREEDY, messages=HELLO, **QUIET) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def post(server, path="/v1/messages", **body):
    return server.http.post(path, json={"model": NAME, "max_tokens": 4, "messages": HELLO, **body})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            "messages[0].content[0].type",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.type"),
        ({"tools": [{"name": "web_search", "type": "web_search_20250305"}]}, "tools[0].type"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"service_tier": "fast"}, "service_tier"),
        ({"temperature": 1000}, "temperature"),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_an_error_names_the_field_in_the_shape_of_this_api(tooled, body, param):
    response = post(tooled, **body)
    assert response.status_code == 400, response.text
    error = response.json()
    assert error["type"] == "error"
    assert (error["error"]["type"], error["error"]["param"]) == ("invalid_request_error", param)


def test_errors_of_the_client(client):
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="other")
    with pytest.raises(anthropic.BadRequestError, match="context"):
        ask(client, max_tokens=5000)


def test_a_key_in_the_header_of_this_api(byte_model):
    with running(byte_model, api_key=("right",)) as server:
        for key, error in (("right", None), ("wrong", anthropic.AuthenticationError)):
            with anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) as client:
                if error is None:
                    assert client.messages.create(model=NAME, max_tokens=2, messages=HELLO).type == "message"
                else:
                    with pytest.raises(error) as refused:
                        client.messages.create(model=NAME, max_tokens=2, messages=HELLO)
                    assert refused.value.body["error"]["type"] == "authentication_error"
