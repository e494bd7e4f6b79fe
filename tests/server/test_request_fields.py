"""Every field of the OpenAI API's request schemas, as the official package has them, is enforced or refused by name."""

import re
import typing

import httpx
import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionUserMessageParam,
    chat_completion_stream_options_param,
)
from openai.types.chat import completion_create_params as chat_params

from trimaran.server.openai import fields

from .byte_model import CHARACTERS, END
from .running import NAME, Running

CHAT = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
TEXT = {"model": NAME, "prompt": "Hi", "max_tokens": 4, "temperature": 0}
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
BODIES = {"chat": CHAT, "text": TEXT}


def post(server: Running, kind: str, **more) -> httpx.Response:
    return server.http.post(PATHS[kind], json={**BODIES[kind], **more})


def choices(server: Running, kind: str, **more):
    response = post(server, kind, **more)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def said(choice) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]


def differs(name, value, **base):
    """``name`` at ``value`` gives another answer than at its default."""

    def check(server, kind):
        assert choices(server, kind, **base, **{name: value}) != choices(server, kind, **base)

    return check


def refuses(name, value):
    """``name`` at ``value``, which is out of range, is a 400 that names it."""

    def check(server, kind):
        response = post(server, kind, **{name: value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)

    return check


def limits_tokens(name):
    def check(server, kind):
        body = {key: value for key, value in BODIES[kind].items() if key != "max_tokens"}
        usage = server.http.post(PATHS[kind], json={**body, name: 2}).json()["usage"]
        assert usage["completion_tokens"] == 2

    return check


def streams(server, kind):
    assert post(server, kind, stream=True).headers["content-type"].startswith("text/event-stream")


def shows_usage(server, kind):
    assert '"usage":{' in post(server, kind, stream=True, stream_options={"include_usage": True}).text
    assert '"usage"' not in post(server, kind, stream=True).text


def makes_choices(server, kind):
    assert len(choices(server, kind, n=3)) == 3


def stops(server, kind):
    text = said(choices(server, kind)[0])
    assert said(choices(server, kind, stop=text[1])[0]) == text[: text.index(text[1])]


def repeats(server, kind):
    hot = {"temperature": 1, "max_tokens": 12}
    assert choices(server, kind, **hot, seed=1) == choices(server, kind, **hot, seed=1)
    assert choices(server, kind, **hot, seed=1) != choices(server, kind, **hot, seed=2)


def shows_logprobs(value):
    def check(server, kind):
        assert choices(server, kind)[0]["logprobs"] is None
        assert choices(server, kind, logprobs=value)[0]["logprobs"] is not None

    return check


def shows_top_logprobs(server, kind):
    entry = choices(server, kind, logprobs=True, top_logprobs=2)[0]["logprobs"]["content"][0]
    assert len(entry["top_logprobs"]) == 2


def echoes(server, kind):
    assert said(choices(server, kind, echo=True)[0]).startswith("Hi")


def is_model(server, kind):
    response = post(server, kind, model="other")
    assert (response.status_code, response.json()["error"]["param"]) == (404, "model")


def is_label(value, name):
    """A label changes no answer, but its type is checked."""

    def check(server, kind):
        assert choices(server, kind, **{name: value}) == choices(server, kind)
        response = post(server, kind, **{name: 7})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)

    return check


def answers_as_asked(name, value, pattern):
    """The answer is what ``name`` at ``value`` says, however the model would answer."""

    def check(server, kind):
        assert not re.fullmatch(pattern, said(choices(server, kind, max_tokens=50)[0]))
        [choice] = choices(server, kind, max_tokens=500, seed=1, **{name: value})
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, said(choice)), said(choice)
        response = post(server, kind, **{name: 7})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)

    return check


FORCED = CHARACTERS.index("z")
ENFORCED = {
    "messages": differs("messages", [{"role": "user", "content": "Something else"}]),
    "prompt": differs("prompt", "Something else"),
    "model": is_model,
    "best_of": refuses("best_of", 2),
    "echo": echoes,
    "frequency_penalty": differs("frequency_penalty", 2, logit_bias={str(FORCED): 5}, max_tokens=20),
    "presence_penalty": differs("presence_penalty", 2, logit_bias={str(FORCED): 3}, max_tokens=20),
    "logit_bias": differs("logit_bias", {str(END): 100}),
    "max_tokens": limits_tokens("max_tokens"),
    "max_completion_tokens": limits_tokens("max_completion_tokens"),
    "n": makes_choices,
    "seed": repeats,
    "stop": stops,
    "stream": streams,
    "stream_options": shows_usage,
    "temperature": differs("temperature", 5, seed=1, max_tokens=20),
    "top_p": differs("top_p", 1e-6, temperature=5, seed=1, max_tokens=20),
    "top_logprobs": shows_top_logprobs,
    "response_format": answers_as_asked("response_format", {"type": "json_object"}, r"\{.*\}"),
    "user": is_label("someone", "user"),
    "safety_identifier": is_label("someone", "safety_identifier"),
    "prompt_cache_key": is_label("somewhere", "prompt_cache_key"),
    "metadata": is_label({"purpose": "test"}, "metadata"),
}
LOGPROBS = {"chat": shows_logprobs(True), "text": shows_logprobs(1)}

MEANT = {  # a value that asks for something, where a bare string would only be of the wrong type
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "parallel_tool_calls": False,
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "high",
    "service_tier": "flex",
    "store": True,
    "tool_choice": "required",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "verbosity": "high",
}


def declared(*types) -> set[str]:
    return {name for each in types for name in typing.get_type_hints(each)}


FIELDS = [
    *(("chat", name) for name in sorted(declared(*typing.get_args(chat_params.CompletionCreateParams)))),
    *(("text", name) for name in sorted(declared(*typing.get_args(text_params.CompletionCreateParams)))),
]


def test_the_walk_sees_the_schemas():
    assert ("chat", "response_format") in FIELDS
    assert ("text", "suffix") in FIELDS
    assert len(FIELDS) > 50


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_field_is_enforced_or_refused(server, kind, name):
    check = LOGPROBS[kind] if name == "logprobs" else ENFORCED.get(name)
    if check is not None:
        check(server, kind)
        return
    response = post(server, kind, **{name: MEANT.get(name, {"something": "asked"})})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == name
    assert name in response.json()["error"]["message"]


@pytest.mark.parametrize("name", sorted(fields.OPENAI_CHAT))
def test_a_value_that_asks_for_nothing_is_accepted(server, name):
    for value in fields.OPENAI_CHAT[name]:
        assert choices(server, "chat", **{name: value}) == choices(server, "chat")


VLLM = {
    "top_k": differs("top_k", 1, temperature=5, seed=1, max_tokens=20),
    "min_p": differs("min_p", 1.0, temperature=5, seed=1, max_tokens=20),
    "repetition_penalty": differs("repetition_penalty", 50.0, logit_bias={str(FORCED): 3}, max_tokens=20),
    "stop_token_ids": refuses("stop_token_ids", [10**6]),
    "ignore_eos": differs("ignore_eos", True, logit_bias={str(END): 100}),
    "min_tokens": differs("min_tokens", 3, logit_bias={str(END): 100}),
    "priority": refuses("priority", 2**40),
    "cache_salt": refuses("cache_salt", 1),
    "constraint": refuses("constraint", {"name": "none is installed"}),
    "guided_choice": answers_as_asked("guided_choice", ["no", "yes"], "no|yes"),
    "guided_grammar": answers_as_asked("guided_grammar", 'root ::= "a" [0-9] [0-9]', r"a\d\d"),
    "guided_json": answers_as_asked("guided_json", {"enum": [1, "b"]}, '1|"b"'),
    "guided_json_object": answers_as_asked("guided_json_object", True, r"\{.*\}"),
    "guided_regex": answers_as_asked("guided_regex", "[a-c]{3}", "[a-c]{3}"),
    "guided_whitespace_pattern": refuses("guided_whitespace_pattern", " "),
    "response_format": answers_as_asked("response_format", {"type": "json_object"}, r"\{.*\}"),
    "structural_tag": refuses("structural_tag", "{}"),
    "structured_outputs": answers_as_asked("structured_outputs", {"regex": "[a-c]{3}"}, "[a-c]{3}"),
}


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("name", sorted(VLLM))
def test_fields_of_vllm(server, kind, name):
    VLLM[name](server, kind)


@pytest.mark.parametrize("name", sorted(fields.VLLM | fields.VLLM_CHAT))
def test_fields_of_vllm_that_are_not_offered(server, name):
    for value in (fields.VLLM | fields.VLLM_CHAT)[name]:
        assert post(server, "chat", **{name: value}).status_code == 200
    response = post(server, "chat", **{name: {"something": "asked"}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)


MESSAGE_FIELDS = sorted(
    declared(
        ChatCompletionAssistantMessageParam,
        ChatCompletionDeveloperMessageParam,
        ChatCompletionSystemMessageParam,
        ChatCompletionUserMessageParam,
    )
    - {"role", "content"}
)


@pytest.mark.parametrize("name", MESSAGE_FIELDS)
def test_fields_of_a_message(server, name):
    message = {"role": "assistant", "content": "Hi"}
    assert choices(server, "chat", messages=[{**message, name: None}]) == choices(server, "chat", messages=[message])
    response = post(server, "chat", messages=[message, {**message, name: "asked"}])
    assert (response.status_code, response.json()["error"]["param"]) == (400, f"messages[1].{name}")


@pytest.mark.parametrize("name", sorted(declared(ChatCompletionContentPartTextParam) - {"type", "text"}))
def test_fields_of_a_text_part(server, name):
    part = {"type": "text", "text": "Hi", name: {"mode": "explicit"}}
    response = post(server, "chat", messages=[{"role": "user", "content": [part]}])
    assert (response.status_code, response.json()["error"]["param"]) == (400, f"messages[0].content[0].{name}")


def test_stream_options(server):
    declared_options = declared(chat_completion_stream_options_param.ChatCompletionStreamOptionsParam)
    for name in declared_options - {"include_usage"}:
        response = post(server, "chat", stream=True, stream_options={name: True})
        assert (response.status_code, response.json()["error"]["param"]) == (400, f"stream_options.{name}")
