"""Text completions through the official client: the four forms of a prompt, the legacy log-probabilities, echo."""

import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from trimaran.server.openai import completions

from .byte_model import CHARACTERS
from .running import NAME

TEXT = "Once upon a time"
IDS = [CHARACTERS.index(char) for char in TEXT]


def ask(client: openai.OpenAI, prompt=TEXT, **options):
    more = {"extra_body": {"ignore_eos": True}, "max_tokens": 12, "temperature": 0}
    return client.completions.create(model=NAME, prompt=prompt, **{**more, **options})


def test_answers(client):
    answer = ask(client)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].text) <= 12
    assert answer.usage.prompt_tokens == len(TEXT)


def test_sixteen_tokens_by_default(client):
    answer = client.completions.create(model=NAME, prompt=TEXT, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


@pytest.mark.parametrize("prompt", [[TEXT], IDS, [IDS]])
def test_forms_of_a_prompt(client, prompt):
    answer = ask(client, prompt)
    assert answer.choices[0].text == ask(client).choices[0].text
    assert answer.usage.prompt_tokens == len(TEXT)


def test_several_prompts_and_choices(client):
    answer = ask(client, [TEXT, "Another"], n=2, temperature=1, seed=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == len(TEXT) + len("Another")
    alone = ask(client, "Another", n=2, temperature=1, seed=4)
    assert [c.text for c in answer.choices[2:]] == [c.text for c in alone.choices]


def test_streams_what_it_answers(client):
    whole = ask(client, [TEXT, "Another"], max_tokens=40)
    texts, reasons = ["", ""], [None, None]
    for chunk in ask(client, [TEXT, "Another"], max_tokens=40, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]


def test_echo(client):
    answer = ask(client).choices[0].text
    assert ask(client, echo=True).choices[0].text == TEXT + answer
    assert ask(client, IDS, echo=True).choices[0].text == TEXT + answer
    assert "".join(chunk.choices[0].text for chunk in ask(client, echo=True, stream=True)) == TEXT + answer


def test_logprobs(client):
    choice = ask(client, logprobs=2, seed=1, temperature=1).choices[0]
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 12
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert token.startswith("<|im_") or choice.text[offset : offset + len(token)] == token
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == logprob
        assert len(top) == 2 + (list(top).index(token) == 2)  # the chosen one is there, among the best or after them
    assert any(len(top) == 3 for top in logprobs.top_logprobs)
    chunks = list(ask(client, logprobs=2, seed=1, temperature=1, stream=True))
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [token for part in parts for token in part.tokens] == logprobs.tokens
    assert [offset for part in parts for offset in part.text_offset] == logprobs.text_offset


def test_logprobs_of_the_chosen_only(client):
    logprobs = ask(client, logprobs=0).choices[0].logprobs
    assert len(logprobs.token_logprobs) == 12
    assert logprobs.top_logprobs is None


def test_best_of_equal_to_n_changes_nothing(client):
    assert len(ask(client, n=2, best_of=2).choices) == 2


def test_long_texts_are_tokenised_one_at_a_time(server, monkeypatch):
    made, running, most = completions.generation, [], []

    def generation(*args):
        running.append(None)
        most.append(len(running))
        time.sleep(0.1)
        running.pop()
        return made(*args)

    monkeypatch.setattr(completions, "generation", generation)
    body = {"model": NAME, "prompt": "x" * 20_000}
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda _: server.http.post("/v1/completions", json=body), range(3)))
    assert [answer.json()["error"]["code"] for answer in answers] == ["context_length_exceeded"] * 3
    assert most == [1, 1, 1]
