"""A bug of ours is a 500, or in mid-stream an event of the same shape; it tells nothing of the inside."""

import openai
import pytest

from trimaran.server.openai import chat, chat_events

from .running import NAME

HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture
def broken(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(chat, "chat_logprobs", fail)


@pytest.mark.usefixtures("broken")
def test_before_the_answer(client):
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=2, logprobs=True)
    assert caught.value.code == "internal_error"
    assert "inside" not in str(caught.value)
    assert client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=2)


def test_in_a_stream(client, monkeypatch):
    count = 0
    whole = chat_events.chat_logprobs

    def fail_later(*args):
        nonlocal count
        count += 1
        if count > 2:
            raise ZeroDivisionError("inside")
        return whole(*args)

    monkeypatch.setattr(chat_events, "chat_logprobs", fail_later)
    stream = client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=9, logprobs=True, stream=True, seed=11
    )
    assert next(stream).choices
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "internal_error"
    assert "inside" not in str(caught.value)
