"""Chat completions through the official client: shapes, counts, and the promises of each option."""

import openai
import pytest

from .byte_model import CHARACTERS, END
from .running import NAME, Running

HELLO = [{"role": "user", "content": "Hello!"}]


def ask(client: openai.OpenAI, **options):
    return client.chat.completions.create(model=NAME, messages=HELLO, **{"max_tokens": 12, "seed": 11, **options})


def test_answers(client):
    answer = ask(client, temperature=0)
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == NAME
    assert answer.system_fingerprint.startswith("fp_")
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == len("user\nHello!\nassistant\n") + 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_streams_what_it_answers(client):
    whole = ask(client, temperature=0, max_tokens=60)
    chunks = list(ask(client, temperature=0, max_tokens=60, stream=True, stream_options={"include_usage": True}))
    *spoken, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in spoken) == whole.choices[0].message.content
    assert [chunk.choices[0].delta.role for chunk in spoken if chunk.choices[0].delta.role] == ["assistant"]
    assert [c.choices[0].finish_reason for c in spoken if c.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert all(chunk.usage is None for chunk in spoken)
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_no_usage_unless_asked(client):
    assert all(chunk.usage is None and chunk.choices for chunk in ask(client, stream=True))


def test_cached_tokens_are_counted(client):
    messages = [
        {"role": "user", "content": "A prompt that fills several pages of sixteen tokens each, for once and again."}
    ]
    first, second = (client.chat.completions.create(model=NAME, messages=messages, max_tokens=2) for _ in range(2))
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens >= 64


def test_salt_keeps_caches_apart(client):
    messages = [{"role": "user", "content": "Another prompt that fills several pages of sixteen tokens each, salted."}]
    counts = [
        client.chat.completions.create(
            model=NAME, messages=messages, max_tokens=2, extra_body={"cache_salt": salt}
        ).usage.prompt_tokens_details.cached_tokens
        for salt in ("a", "b", "a")
    ]
    assert counts[:2] == [0, 0]
    assert counts[2] >= 64


def test_seed_repeats_and_choices_differ(client):
    first, second = (ask(client, seed=7, n=3, extra_body={"ignore_eos": True}) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) == 3
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert first.usage.completion_tokens == 36
    assert ask(client, seed=70).choices[0].message.content not in texts


def test_streams_every_choice(client):
    whole = ask(client, seed=3, n=2)
    texts = ["", ""]
    for chunk in ask(client, seed=3, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_logprobs(client):
    choice = ask(client, seed=1, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert len(entries) == 12
    shown = [bytes(entry.bytes).decode() for entry in entries if entry.token != "<|im_start|>"]
    assert "".join(shown) == choice.message.content
    assert all(entry.logprob <= 0 for entry in entries)
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        tops = [top.logprob for top in entry.top_logprobs]
        assert tops == sorted(tops, reverse=True)
    streamed = [
        entry
        for chunk in ask(client, seed=1, logprobs=True, top_logprobs=3, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert streamed == entries


def test_logprobs_without_top(client):
    assert ask(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_no_logprobs_unless_asked(client):
    assert ask(client).choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string(client, stream):
    text = ask(client, seed=5, max_tokens=40).choices[0].message.content
    stop = text[6:8]
    result = ask(client, seed=5, max_tokens=40, stop=["never", stop], stream=stream)
    if stream:
        chunks = list(result)
        said, last = "".join(c.choices[0].delta.content or "" for c in chunks), chunks[-1].choices[0]
    else:
        said, last = result.choices[0].message.content, result.choices[0]
        assert result.usage.completion_tokens < 40
    assert said == text[: text.index(stop)]
    assert last.finish_reason == "stop"
    assert last.stop_reason == stop


def test_stop_token(client):
    text = ask(client, temperature=0).choices[0].message.content
    token = CHARACTERS.index(text[2])
    choice = ask(client, temperature=0, extra_body={"stop_token_ids": [token]}).choices[0]
    assert choice.message.content == text[: text.index(text[2])]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", token)


def test_end_of_answer(client):
    forced = {"logit_bias": {str(END): 100}, "temperature": 0}
    choice = ask(client, **forced).choices[0]
    assert (choice.message.content, choice.finish_reason, choice.stop_reason) == ("", "stop", None)
    later = ask(client, **forced, extra_body={"min_tokens": 5})
    assert later.usage.completion_tokens == 6
    never = ask(client, **forced, extra_body={"ignore_eos": True})
    assert (never.choices[0].finish_reason, never.usage.completion_tokens) == ("length", 12)


def test_max_completion_tokens(client):
    answer = client.chat.completions.create(model=NAME, messages=HELLO, max_completion_tokens=3, temperature=0)
    assert answer.usage.completion_tokens == 3


def test_text_parts_and_developer(client):
    def count(messages):
        return client.chat.completions.create(model=NAME, messages=messages, max_tokens=1).usage.prompt_tokens

    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo!"}]
    assert count([{"role": "user", "content": parts}]) == count([{"role": "user", "content": "Hel\nlo!"}])
    assert count([{"role": "developer", "content": "x"}, *HELLO]) == count([{"role": "system", "content": "x"}, *HELLO])


def test_template_options(client):
    plain = ask(client, max_tokens=1).usage.prompt_tokens
    shouting = ask(client, max_tokens=1, extra_body={"chat_template_kwargs": {"shout": True}})
    assert shouting.usage.prompt_tokens == plain + 1
    bare = ask(client, max_tokens=1, extra_body={"add_generation_prompt": False})
    assert bare.usage.prompt_tokens == plain - len("assistant\n") - 1


def test_reasoning_effort_goes_to_the_template(client):
    plain = ask(client, max_tokens=1).usage.prompt_tokens
    assert ask(client, max_tokens=1, reasoning_effort="low").usage.prompt_tokens == plain + 1
    assert ask(client, max_tokens=1, reasoning_effort="none").usage.prompt_tokens == plain
    with pytest.raises(openai.BadRequestError, match="does not know reasoning_effort 'high'"):
        ask(client, max_tokens=1, reasoning_effort="high")
    both = {"chat_template_kwargs": {"reasoning_effort": "low"}}
    with pytest.raises(openai.BadRequestError, match="and so does chat_template_kwargs"):
        ask(client, max_tokens=1, reasoning_effort="low", extra_body=both)


def test_control_tokens_in_a_message_are_text(client):
    answer = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "<|im_end|>"}], max_tokens=1
    )
    assert answer.usage.prompt_tokens == len("user\n<|im_end|>\nassistant\n") + 3


def test_an_answer_can_be_sent_back(client):
    message = ask(client, seed=1).choices[0].message
    again = [*HELLO, message, {"role": "user", "content": "Go on."}]
    answer = client.chat.completions.create(model=NAME, messages=again, max_tokens=2)
    assert answer.usage.prompt_tokens > len("user\nHello!\nassistant\nuser\nGo on.\nassistant\n")


def test_aliases(client):
    assert client.chat.completions.create(model="alias", messages=HELLO, max_tokens=1).model == "alias"


async def test_async_client(server: Running):
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=NAME, messages=HELLO, max_tokens=5, temperature=0, stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
