"""Requests with tools: what is taken, and which field an error names."""

from pathlib import Path

import pytest

from .running import NAME, Running, running

QWEN = Path(__file__).resolve().parents[1] / "data" / "templates" / "qwen2.5.jinja"
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
HELLO = {"role": "user", "content": "Hello!"}
BROKEN = {"name": "look", "arguments": "["}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.fixture(scope="module")
def tooled(byte_model):
    with running(byte_model, chat_template=str(QWEN)) as server:
        yield server


def post(server: Running, **more):
    body = {"model": NAME, "messages": [HELLO], "max_tokens": 4, "temperature": 0, **more}
    return server.http.post("/v1/chat/completions", json=body)


def function(**more):
    return {"type": "function", "function": {"name": "look", **more}}


def test_the_prompt_shows_the_tools(tooled):
    tokens = [post(tooled, tools=tools).json()["usage"]["prompt_tokens"] for tools in ([], [LOOK], None)]
    assert tokens[0] == tokens[2] < tokens[1]
    shown = post(tooled, tools=[function(description="d", strict=None)])
    assert shown.json()["usage"]["prompt_tokens"] == tokens[1] + len('"description": "d", ')


def test_a_conversation_with_calls_and_results(tooled):
    said = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []}
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "a view"}]}
    response = post(tooled, messages=[HELLO, said, result], tools=[LOOK])
    assert response.status_code == 200, response.text


def test_a_template_without_tools_says_so(server):
    response = post(server, tools=[LOOK])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    said = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    response = post(server, messages=[HELLO, said])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[1].tool_calls")


def test_parsers_can_be_switched_off(byte_model):
    with running(byte_model, chat_template=str(QWEN), tool_call_parser="none") as server:
        response = post(server, tools=[LOOK])
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
        assert post(server, tools=[LOOK], tool_choice="none").status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [function(), function()]}, "tools[1].function.name"),
        ({"tools": [function(name="a b")]}, "tools[0].function.name"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function(parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
        ({"tools": [function(parameters={"properties": []})]}, "tools[0].function.parameters.properties"),
        ({"tools": [function(parameters={"title": "x" * 2**18})]}, "tools[0].function.parameters"),
        ({"tools": [function(colour="red")]}, "tools[0].function.colour"),
        ({"tools": [function(strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [LOOK] * 513}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes", "tools": [LOOK]}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "go"}}, "tools": [LOOK]},
            "tool_choice.function.name",
        ),
        ({"tool_choice": {"type": "function"}, "tools": [LOOK]}, "tool_choice.function"),
        ({"tool_choice": {"type": "custom"}, "tools": [LOOK]}, "tool_choice.type"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"messages": [HELLO, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "index": 1}]}]},
            "messages[0].tool_calls[0].index",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "["}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [HELLO, {"role": "assistant", "content": "x", "reasoning_content": "y"}]},
            "messages[1].reasoning_content",
        ),
        ({"tools": [LOOK], "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ],
)
def test_an_error_names_the_field(tooled, body, param):
    response = post(tooled, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert param.split(".")[-1] in response.json()["error"]["message"]
