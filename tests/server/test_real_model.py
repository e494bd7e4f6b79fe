"""The real small model through the official client: text that makes sense, cut, repeated and cancelled as asked."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import openai
import pytest

from trimaran.cli.serve import engine_config
from trimaran.server.options import ServeOptions

from .running import NAME, Running, eventually, serving

TEMPLATE = Path(__file__).resolve().parents[1] / "data" / "templates" / "qwen2.5.jinja"
HAMLET = [{"role": "user", "content": "Who wrote Hamlet?"}]


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[Running]:
    options = ServeOptions(kv_cache_memory_bytes=2**27, max_model_len=4096)
    with serving(smollm2, options, engine_config(options, smollm2, NAME)) as server:
        yield server


def test_it_knows_hamlet(client):
    answer = client.chat.completions.create(model=NAME, messages=HAMLET, temperature=0, max_tokens=200)
    assert "Shakespeare" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


def test_stream_logprobs_and_usage_agree_with_the_whole(client):
    options = {
        "model": NAME,
        "messages": HAMLET,
        "temperature": 0,
        "max_tokens": 24,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**options)
    text, entries, usage = "", [], None
    for chunk in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            entries += choice.logprobs.content if choice.logprobs else []
    assert text == whole.choices[0].message.content
    assert entries == whole.choices[0].logprobs.content
    assert usage.completion_tokens == whole.usage.completion_tokens
    for entry in entries:  # greedy: the chosen one is the most likely
        assert entry.token == entry.top_logprobs[0].token


def test_stop_string(client):
    prompt = "Count: one, two, three,"
    whole = client.completions.create(model=NAME, prompt=prompt, temperature=0, max_tokens=16).choices[0].text
    stop = whole[5:9]
    cut = client.completions.create(model=NAME, prompt=prompt, temperature=0, max_tokens=16, stop=stop).choices[0]
    assert (cut.text, cut.finish_reason) == (whole[: whole.index(stop)], "stop")


def test_n_and_seed(client):
    def ask(seed):
        answer = client.chat.completions.create(model=NAME, messages=HAMLET, n=3, seed=seed, max_tokens=12)
        return [choice.message.content for choice in answer.choices]

    assert ask(1) == ask(1)
    assert ask(1) != ask(2)


def test_a_prompt_is_found_again(client):
    messages = [{"role": "user", "content": "Tell me about the sea, its tides, its ships and the people on them. " * 3}]
    first, second = (
        client.chat.completions.create(model=NAME, messages=messages, max_tokens=8, temperature=0) for _ in range(2)
    )
    assert second.usage.prompt_tokens_details.cached_tokens >= 32
    assert first.choices[0].message.content == second.choices[0].message.content


async def test_company_changes_nothing_and_leaving_frees_pages(server):
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:

        async def ask(prompt: str) -> str:
            answer = await client.completions.create(model=NAME, prompt=prompt, temperature=0, max_tokens=24)
            return answer.choices[0].text

        prompts = ["Once upon a time", "The river", "def add(a, b):"]
        alone = [await ask(prompt) for prompt in prompts]
        stream = await client.completions.create(model=NAME, prompt="For ever", max_tokens=2000, stream=True)
        await anext(aiter(stream))
        together = asyncio.gather(*(ask(prompt) for prompt in prompts))
        await stream.close()
        assert await together == alone
    await asyncio.to_thread(eventually, lambda: server.metric("trimaran_sequences_running") == 0)
    await asyncio.to_thread(eventually, lambda: server.pages() == server.metric("trimaran_pages"))


def test_calls_that_it_must_make_are_sound(smollm2):
    """The model was never shown tools: what it writes is its own, how it writes it the grammar's."""
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    options = ServeOptions(kv_cache_memory_bytes=2**27, max_model_len=2048, chat_template=str(TEMPLATE))
    with (
        serving(smollm2, options, engine_config(options, smollm2, NAME)) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client,
    ):
        answer = client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": "Weather in Bern for two days?"}],
            tools=[tool],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=100,
            seed=1,
            n=4,
        )
    for choice in answer.choices:
        (call,) = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
        jsonschema.validate(json.loads(call.function.arguments), parameters)


def test_two_pools_give_the_answers_of_one_engine(smollm2, client):
    """Of equal precisions; with a grammar, drafts and the canary, which all run on both sides."""
    more = {"pools": "prefill=1,decode=1", "speculative_ngram": 4, "canary_interval": 0.5}
    options = ServeOptions(kv_cache_memory_bytes=2**27, max_model_len=4096, threads=1, **more)
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    named = {"name": "p", "schema": schema}
    asked = [
        {"temperature": 0, "max_tokens": 30},
        {"temperature": 0.7, "seed": 5, "n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": 20},
        {"temperature": 0, "max_tokens": 40, "response_format": {"type": "json_schema", "json_schema": named}},
    ]
    with serving(smollm2, options, engine_config(options, smollm2, NAME)) as pools:
        with openai.OpenAI(base_url=pools.url + "/v1", api_key="unused", max_retries=0) as other:
            for body in asked:
                mine = other.chat.completions.create(model=NAME, messages=HAMLET, **body)
                theirs = client.chat.completions.create(model=NAME, messages=HAMLET, **body)
                assert mine.choices == theirs.choices
                assert mine.usage.completion_tokens == theirs.usage.completion_tokens
        assert pools.metric("trimaran_canary_deviations_total") == 0
        assert pools.metric("trimaran_handoff_bytes_total") > 0


def test_one_engine_shows_both_of_its_formats(smollm2):
    flags = ServeOptions(prefill_weights="int8", decode_weights="int4z", kv_cache_memory_bytes=2**26, max_model_len=512)
    with (
        serving(smollm2, flags, engine_config(flags, smollm2, NAME)) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client,
    ):
        held = "prefill int8, decode int4z+int8"
        assert server.http.get("/v1/models").json()["data"][0]["weight_format"] == held
        assert server.http.get("/version").json()["weight_format"] == held
        answer = client.completions.create(model=NAME, prompt="The capital of France is", temperature=0, max_tokens=4)
        assert answer.choices[0].text.startswith(" Paris")
