"""``/tokenize`` and ``/detokenize``: what a request's prompt would be."""

import pytest

from .byte_model import CHARACTERS, END, START
from .running import NAME

HELLO = [{"role": "user", "content": "Hello!"}]
NOW = {"type": "function", "function": {"name": "now"}}


def post(server, path, **body):
    return server.http.post(path, json={"model": NAME, **body})


def test_a_prompt(server):
    answer = post(server, "/tokenize", prompt="Hi<|im_end|>", return_token_strs=True).json()
    ids = [CHARACTERS.index("H"), CHARACTERS.index("i"), END]
    assert answer == {"count": 3, "max_model_len": 2048, "tokens": ids, "token_strs": ["H", "i", "<|im_end|>"]}
    plain = post(server, "/tokenize", prompt="Hi", add_special_tokens=False).json()
    assert plain == {"count": 2, "max_model_len": 2048, "tokens": ids[:2], "token_strs": None}
    assert post(server, "/detokenize", tokens=ids).json() == {"prompt": "Hi<|im_end|>"}


@pytest.mark.parametrize("tools", [None, [NOW]])
def test_a_conversation_is_what_a_chat_would_read(tooled, tools):
    options = {"messages": HELLO, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}}
    answer = post(tooled, "/tokenize", **options).json()
    chat = post(tooled, "/v1/chat/completions", **options, max_tokens=1).json()
    assert answer["count"] == len(answer["tokens"]) == chat["usage"]["prompt_tokens"]
    assert answer["tokens"][0] == START
    text = post(tooled, "/detokenize", tokens=answer["tokens"]).json()["prompt"]
    assert ("now" in text) == bool(tools)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "messages"),
        ("/tokenize", {"messages": HELLO, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": HELLO, "tools": [NOW]}, "tools"),
        ("/tokenize", {"messages": [{"role": "no", "content": "x"}]}, "messages[0].role"),
        ("/detokenize", {"tokens": [5, 10**6]}, "tokens[1]"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_an_error_names_the_field(server, path, body, param):
    response = post(server, path, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_the_model_must_be_served(server):
    assert server.http.post("/tokenize", json={"model": "other", "prompt": "a"}).status_code == 404
