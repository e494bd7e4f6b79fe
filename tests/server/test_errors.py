"""Whatever goes wrong, the answer has OpenAI's shape, the right status, and names what was wrong."""

import json

import httpx
import openai
import pytest

from trimaran.base import errors
from trimaran.server.errors import answer
from trimaran.server.openai.validation import request_error
from trimaran.text.tokenizer import Tokenizer

from .running import NAME

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello!"}]
IMAGE = [{"type": "image_url", "image_url": {"url": "data:"}}]
NESTED = b'{"model": ' + b"[" * 100_000
HALF_PAIR = b'{"model": "bytes", "messages": [{"role": "user", "content": "x"}], "cache_salt": "\\ud83d"}'
NOT_A_NUMBER = b'{"model": "bytes", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}'


def error_of(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


def test_no_such_route(server):
    assert error_of(server.http.post("/v1/images"), 404)["code"] == "not_found"


def test_no_such_method(server):
    response = server.http.get(CHAT)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b"\xff", NESTED, HALF_PAIR, NOT_A_NUMBER])
def test_no_json_object(server, body):
    error_of(server.http.post(CHAT, content=body, headers={"content-type": "application/json"}), 400)


def test_no_json_content_type(server):
    error = error_of(server.http.post(CHAT, content=json.dumps({"model": NAME, "messages": HELLO})), 400)
    assert "content-type" in error["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*HELLO, {"role": "critic", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content[0].type"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x" * 1025]}, "stop"),
        ({"seed": 2**63}, "seed"),
        ({"stop_token_ids": [1] * 2000, "n": 100}, "stop_token_ids"),
        ({"stop_token_ids": [1] * 200_000}, "stop_token_ids"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"logit_bias": {"one": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 10_000}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 10_000}, "max_completion_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"chat_template_kwargs": {"unread": 1}}, "unread"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
        ({"temprature": 1}, "temprature"),
    ],
)  # fmt: skip
def test_bad_fields(server, change, param):
    body = {"model": NAME, "messages": HELLO, **change}
    content = json.dumps({key: value for key, value in body.items() if value is not None})
    response = server.http.post(CHAT, content=content, headers={"content-type": "application/json"})
    assert error_of(response, 400)["param"] == param


def test_a_conversation_without_messages(server):
    error = error_of(server.http.post(CHAT, json={"model": NAME, "messages": []}), 400)
    assert (error["message"], error["code"]) == ("messages is empty", "invalid_value")


@pytest.mark.parametrize(
    ("route", "change", "message", "code"),
    [
        ("completions", {"prompt": None}, "prompt must be a string or a list", "invalid_type"),
        ("completions", {"prompt": {"text": "x"}}, "prompt must be a string or a list", "invalid_type"),
        ("completions", {"stop": 3}, "stop must be a string or a list", "invalid_type"),
        ("completions", {"n": "3"}, "n must be an integer", "invalid_type"),
        ("completions", {"guided_json": 3}, "guided_json must be an object or a boolean or a string", "invalid_type"),
        ("completions", {"priority": 2**31}, "priority: input should be less than 2147483648", "invalid_value"),
        (
            "completions",
            {"constraint": {"name": ""}},
            "constraint.name: string should have at least 1",
            "invalid_value",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": 3}]},
            "messages[0].content must be a string or a list",
            "invalid_type",
        ),
        ("chat/completions", {"reasoning_effort": 3}, "reasoning_effort: input should be 'none', ", "invalid_type"),
        ("chat/completions", {"reasoning_effort": "x"}, "reasoning_effort: input should be 'none', ", "invalid_value"),
        ("responses", {"input": None}, "input must be a string or a list", "invalid_type"),
        ("responses", {"input": []}, "input is empty", "invalid_value"),
    ],
)
def test_a_value_of_no_kind_that_fits_and_one_that_does_not_fit(server, route, change, message, code):
    prompts = {"completions": {"prompt": "x"}, "chat/completions": {"messages": HELLO}, "responses": {"input": "x"}}
    error = error_of(server.http.post(f"/v1/{route}", json={"model": NAME, **prompts[route], **change}), 400)
    assert error["message"].startswith(message)
    assert error["code"] == code


@pytest.mark.parametrize("more", [{}, {"content": "x", "tool_call_id": "a"}, {"tool_calls": [1]}])
def test_an_unknown_role_is_named_before_its_fields(server, more):
    error = error_of(server.http.post(CHAT, json={"model": NAME, "messages": [{"role": "critic", **more}]}), 400)
    assert error["message"] == "messages[0].role must be one of system, developer, user, assistant, tool, not 'critic'"
    assert (error["param"], error["code"]) == ("messages[0].role", "invalid_value")


def test_a_misspelt_field_is_recognised(server):
    error = error_of(server.http.post(CHAT, json={"model": NAME, "messages": HELLO, "temprature": 1}), 400)
    assert error["message"].endswith("did you mean temperature?")


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x" * 80_000}, "prompt"),
        ("/v1/completions", {"prompt": ["x", "x" * 80_000]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 40_000}] * 2}, "messages"),
    ],
)
def test_a_prompt_far_beyond_the_context_is_not_tokenised(server, monkeypatch, route, body, param):
    monkeypatch.setattr(Tokenizer, "encode", None)
    response = server.http.post(route, json={"model": NAME, **body})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert "the prompt has at least 2" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context(client, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=NAME, prompt="x" * 2048, stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=NAME, prompt="x" * 2000, max_tokens=49, stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")
    assert client.completions.create(model=NAME, prompt="x" * 2000, max_tokens=48).usage.prompt_tokens == 2000


@pytest.mark.parametrize("prompt", ["", [], [[]], ["x", ""], [-1], [98], [[1], [98]], {}, 7, [1.5], [True], ["x", 1]])
def test_bad_prompts(server, prompt):
    error = error_of(server.http.post("/v1/completions", json={"model": NAME, "prompt": prompt}), 400)
    assert error["param"].startswith("prompt")


def test_too_many_choices_in_all(server):
    error = error_of(server.http.post("/v1/completions", json={"model": NAME, "prompt": ["x"] * 65, "n": 2}), 400)
    assert error["param"] == "n"


@pytest.mark.parametrize(
    ("route", "field", "value"),
    [
        ("/v1/completions", "prompt", [True] * 100_000),
        (CHAT, "messages", [1] * 100_000),
        (CHAT, "messages", [{"role": "user", "content": [1] * 100_000}]),
        (CHAT, "stop", [1] * 100_000),
        (CHAT, "stop_token_ids", ["1"] * 100_000),
        (CHAT, "logit_bias", dict.fromkeys(map(str, range(100_000)), "x")),
        (CHAT, "metadata", dict.fromkeys(map(str, range(100_000)), 1)),
    ],
)
def test_one_finding_about_a_long_list_is_enough(server, monkeypatch, route, field, value):
    seen = []
    monkeypatch.setattr(
        "trimaran.server.json_route.request_error", lambda found, body: seen.append(found) or judge(found, body)
    )
    judge = request_error
    prompt = {"prompt": "x"} if route != CHAT else {"messages": HELLO}
    error = error_of(server.http.post(route, json={"model": NAME, **prompt, field: value}), 400)
    assert error["param"].startswith(field)
    assert len(error["message"]) < 200
    assert len(seen[0]) < 10  # collecting one for every element stops the server for seconds


def test_a_failure_of_the_model_is_told_and_not_looked_for_in_the_log():
    result = answer(errors.NumericsError("the logits are not finite"))
    assert (result.status, result.error.code) == (500, "not_finite")
    assert result.error.message == "the logits are not finite"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.RequestError("x", param="n"), 400),
        (errors.ContextLengthError("x"), 400),
        (errors.UnsupportedError("x"), 400),
        (errors.QueueFullError("x", retry_after=2.5), 429),
        (errors.EngineDiedError("x"), 503),
        (errors.ConfigError("secret"), 500),
        (RuntimeError("secret"), 500),
    ],
)
def test_status_of_each_error(error, status):
    result = answer(error)
    assert result.status == status
    assert "secret" not in result.error.message
    if status == 429:
        assert result.headers == {"retry-after": "3"}
