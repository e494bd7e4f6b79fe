"""How much of everything a request may hold."""

import pytest

from trimaran.server.openai.bounds import MAX_DEPTH, MAX_MESSAGES, MAX_PARTS, MAX_SCHEMA_BYTES

from .running import NAME

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello!"}]


def nested(depth: int) -> bytes:
    """A body whose arrays and objects are ``depth`` deep; the field is one that is refused at any value."""
    return b'{"model": "bytes", "prompt": "x", "documents": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_a_body_nests_as_deep_as_it_may(server):
    headers = {"content-type": "application/json"}
    as_deep = server.http.post("/v1/completions", content=nested(MAX_DEPTH), headers=headers)
    assert as_deep.json()["error"]["param"] == "documents"
    deeper = server.http.post("/v1/completions", content=nested(MAX_DEPTH + 1), headers=headers)
    assert deeper.status_code == 400
    assert deeper.json()["error"]["message"] == f"the body nests arrays and objects more than {MAX_DEPTH} deep"


def test_brackets_beside_each_other_or_in_text_are_not_deep(server):
    messages = [{"role": "user", "content": "[" * 300}] * 300
    assert server.http.post(CHAT, json={"model": NAME, "messages": messages}).json()["error"]["code"] == (
        "context_length_exceeded"
    )


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"messages": HELLO * (MAX_MESSAGES + 1)}, "messages", f"more than {MAX_MESSAGES:,} entries"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * (MAX_PARTS + 1)}]},
            "messages[0].content",
            f"more than {MAX_PARTS:,} entries",
        ),
        (
            {"messages": HELLO, "chat_template_kwargs": {"shout": "x" * MAX_SCHEMA_BYTES}},
            "chat_template_kwargs",
            f"the limit is {MAX_SCHEMA_BYTES:,}",
        ),
    ],
)
def test_more_than_a_request_may_hold(server, fields, param, says):
    response = server.http.post(CHAT, json={"model": NAME, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, "invalid_value")
    assert says in error["message"]
