"""A server over two pools: what its clients see is one engine, whatever happens to the workers."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from trimaran.base.errors import ConfigError, EngineDiedError
from trimaran.base.messages import Token
from trimaran.cli.pools import pool_members, pool_workers
from trimaran.cli.serve import engine_config, launch_of
from trimaran.engine.config import EngineConfig
from trimaran.kernels.null import NullModel
from trimaran.server import restarts, self_test
from trimaran.server.options import ServeOptions

from .batching import begun, ended, results, texts, until
from .byte_model import END, VOCAB
from .running import NAME, Running, eventually, running

MODEL = NullModel(vocab=VOCAB, context=2048, eos_id=END, eos_one_in=64)
SLOW = NullModel(vocab=VOCAB, context=2048, step_seconds=0.005)
CHUNKS = {"max_num_batched_tokens": 64}
POOLS = "prefill=1,decode=1"
PROMPTS = ["Hello", "x" * 700, "y" * 100]


@pytest.fixture(scope="module")
def server(byte_model) -> Iterator[Running]:
    with running(byte_model, pools=POOLS) as server:
        yield server


def pooled(byte_model: Path, null: NullModel, **options: Any) -> AbstractContextManager[Running]:
    """Without the self-test, which takes longer than the test that wants a server of its own."""
    return running(byte_model, null=null, **{"pools": POOLS, "pool_self_test": False} | options)


def client_of(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=30)


def assert_at_rest(server: Running) -> None:
    """Nobody holds anything: pages on both sides, places with the router."""
    eventually(lambda: server.metric("trimaran_sequences_running") == 0)
    eventually(lambda: server.metric("trimaran_page_leases") == 0)
    eventually(lambda: server.pages() == server.metric("trimaran_pages"))
    eventually(lambda: server.metric("trimaran_router_tokens") == 0)


def complete(client: openai.OpenAI, prompt: str, **options: Any) -> Any:
    return client.completions.create(model=NAME, prompt=prompt, **{"max_tokens": 40, "temperature": 0} | options)


@pytest.fixture(scope="module")
def other(byte_model) -> Iterator[openai.OpenAI]:
    """A client of one engine."""
    with running(byte_model) as alone, client_of(alone) as client:
        yield client


def test_answers_and_usage_are_those_of_one_engine(server, client, other):
    for prompt in [*PROMPTS, PROMPTS[1]]:
        for more in ({}, {"temperature": 1, "seed": 5, "n": 2, "logprobs": 2}, {"max_tokens": 1}):
            mine, theirs = complete(client, prompt, **more), complete(other, prompt, **more)
            assert mine.choices == theirs.choices
            assert mine.usage == theirs.usage
    assert_at_rest(server)


def test_a_chat_is_one_stream(server, client):
    asked = {"model": NAME, "messages": [{"role": "user", "content": "Hello!" * 30}], "temperature": 0}
    whole = client.chat.completions.create(**asked, max_tokens=60)
    stream = client.chat.completions.create(**asked, max_tokens=60, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_errors_name_the_field(client):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, "z" * 2047, max_tokens=9)
    assert caught.value.code == "context_length_exceeded"


def test_precisions_and_metrics_are_told_by_role(server, client):
    complete(client, "And now?" * 9, extra_headers={"x-session-affinity": "me"})
    assert server.metric("trimaran_handoff_bytes_total") > 0
    eventually(lambda: server.metric("trimaran_generated_tokens_total", role="decode") > 0)
    assert server.metric("trimaran_engine_up", role="prefill", worker="0") == 1
    assert server.metric("trimaran_engine_up", role="decode", worker="0") == 1
    assert server.metric("trimaran_handoff_seconds_count") > 0
    assert server.metric("trimaran_router_queued") == 0
    assert client.models.list().data[0].model_dump()["kv_format"] == "bf16"


def test_formats_of_both_pools_are_disclosed(byte_model, other):
    with running(byte_model, pools=POOLS, decode_kv="fp8") as server, client_of(server) as client:
        assert client.models.list().data[0].model_dump()["kv_format"] == "prefill bf16, decode fp8"
        assert complete(client, PROMPTS[1]).choices == complete(other, PROMPTS[1]).choices


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.06, 0.15])
def test_a_client_that_leaves_frees_everything(byte_model, moment, shared_slow):
    with httpx.Client(base_url=shared_slow.url, timeout=5) as client:
        body = {"model": NAME, "prompt": "x" * 1800, "max_tokens": 200, "stream": True, "ignore_eos": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            time.sleep(moment)
    assert_at_rest(shared_slow)


@pytest.fixture(scope="module")
def shared_slow(byte_model) -> Iterator[Running]:
    with running(byte_model, null=SLOW, pools=POOLS, max_num_seqs=8, engine=CHUNKS) as server:
        yield server


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_dies_before_the_first_token_costs_time_only(byte_model, monkeypatch, role):
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.1)
    null = NullModel(vocab=VOCAB, context=2048, step_seconds=0.03)
    with (
        running(byte_model, null=null, pools=POOLS, engine=CHUNKS, max_num_seqs=8) as server,
        client_of(server) as client,
    ):
        found = []
        asking = threading.Thread(target=lambda: found.append(complete(client, "x" * 700).choices[0].text))
        asking.start()
        eventually(lambda: server.metric("trimaran_sequences_running", role="prefill") == 1)
        server.worker(role).kill()
        asking.join(30)
        assert found == [complete(client, "x" * 700).choices[0].text]
        assert server.metric("trimaran_router_retries_total") >= 1
        assert_at_rest(server)


def test_a_decode_worker_that_dies_after_the_first_token_ends_the_answer(byte_model, monkeypatch):
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.1)
    with pooled(byte_model, SLOW) as server, client_of(server) as client:
        stream = iter(complete(client, "Hi", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}))
        next(stream)
        server.worker("decode").kill()
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "engine_unavailable"
        trouble = server.http.get("/ready")
        assert trouble.status_code == 503
        assert "the decode pool has no worker" in trouble.json()["error"]["message"]
        eventually(lambda: server.http.get("/ready").status_code == 200)
        assert complete(client, "Hi").choices[0].text
        assert_at_rest(server)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_request_that_comes_while_a_worker_is_started_anew_waits_for_it(byte_model, monkeypatch, role):
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.5)
    with pooled(byte_model, SLOW) as server, client_of(server) as client:
        server.worker(role).kill()
        eventually(lambda: server.http.get("/ready").status_code == 503)
        assert complete(client, "Hi").choices[0].text
        assert_at_rest(server)


def test_a_prefill_worker_that_dies_does_not_disturb_answers(byte_model, monkeypatch):
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.1)
    with pooled(byte_model, SLOW) as server, client_of(server) as client:
        stream = iter(complete(client, "Hi", max_tokens=60, stream=True, extra_body={"ignore_eos": True}))
        next(stream)
        server.worker("prefill").kill()
        assert list(stream)[-1].choices[0].finish_reason == "length"
        eventually(lambda: server.http.get("/ready").status_code == 200)


def test_workers_share_the_requests(byte_model):
    with pooled(byte_model, SLOW, pools="prefill=2,decode=2") as server, client_of(server) as client:
        threads = [threading.Thread(target=complete, args=(client, letter * 300)) for letter in "abcdefgh"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert_at_rest(server)
        for role in ("prefill", "decode"):
            for worker in ("0", "1"):
                assert server.metric("trimaran_prompt_tokens_total", role=role, worker=worker) > 700


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("none", None),
        ("prefill=1,decode=2", ([None], [None, None])),
        (" decode=3 , prefill=1 ", ([None], [None] * 3)),
        ("prefill=2,decode=a:1+[::1]:2", ([None, None], ["a:1", "[::1]:2"])),
    ],
)
def test_who_is_in_the_pools(text, members):
    assert pool_members(text) == members


@pytest.mark.parametrize("text", ["", "prefill=1", "prefill=1,decode=0", "prefill=1,prefill=1", "decode=65,prefill=1"])
def test_pools_that_cannot_be_read(text):
    with pytest.raises(ConfigError, match="--pools is none or such as"):
        pool_members(text)


def test_workers_on_other_hosts_want_a_key(monkeypatch):
    monkeypatch.delenv("TRIMARAN_POOL_KEY", raising=False)
    with pytest.raises(ConfigError, match="workers on other hosts have a key: give it with --pool-key-file"):
        launch_of(ServeOptions(pools="prefill=1,decode=10.0.0.1:7000"), EngineConfig(executor="null"))


def test_a_host_that_cannot_be_reached_is_tried_for_ever(monkeypatch):
    monkeypatch.setenv("TRIMARAN_POOL_KEY", "k" * 40)
    options = ServeOptions(pools="prefill=1,decode=10.0.0.1:7000", restart_limit=3)
    [here], [there] = pool_workers(options, EngineConfig(executor="null"), *pool_members(options.pools))
    assert (here.policy(options).limit, there.policy(options).limit) == (3, None)


def test_threads_that_are_tied_to_cores_have_cores_of_their_own(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 4, 5, 6, 7})
    options = ServeOptions(prefill_threads=3)
    config = EngineConfig(executor="null", pin_threads=True)
    [prefill], [decode] = pool_workers(options, config, [None], [None])
    assert (prefill.config["threads"], prefill.config["cores"]) == (3, (3, 4, 5))
    assert (decode.config["threads"], decode.config["cores"]) == (2, (6, 7))
    free, _ = pool_workers(options, EngineConfig(executor="null"), [None], [None])
    assert free[0].config["cores"] == ()


def test_flags_of_pools_want_pools():
    with pytest.raises(ConfigError, match="--decode-kv is of no use without pools"):
        launch_of(ServeOptions(decode_kv="fp8"), EngineConfig(executor="null"))


@pytest.mark.parametrize(
    ("flags", "prefill", "decode"),
    [
        ({"prefill_weights": "int8", "decode_weights": "int4z"}, "int8", "int4z"),
        ({"prefill_weights": "bfloat16", "weight_format": "int8"}, "bf16", "int8"),
        ({"decode_weights": "int4"}, "auto", "int4"),
        ({"prefill_weights": "int8", "decode_weights": "auto", "weight_format": "int4"}, "int8", None),
        ({"weight_format": "int8"}, "same", "int8"),
    ],
)
def test_one_engine_prefills_and_decodes_with_weights_of_two_formats(flags, prefill, decode):
    options = ServeOptions(**flags)
    config = launch_of(options, engine_config(options, Path("m.gguf"), "m"))._config  # type: ignore[attr-defined]
    assert (config["prefill_weight_format"], config["weight_format"], config["role"]) == (prefill, decode, "both")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"prefill_weights": "int8", "decode_weights": "int8"}, "prefill and decode weights are both int8"),
        ({"decode_weights": "int8", "weight_format": "int8"}, "both int8: say that with --weight-format int8 alone"),
        ({"prefill_weights": "auto"}, "both auto: say that with --weight-format auto alone"),
        ({"decode_weights": "int8", "executor": "null"}, "of no use to the null executor"),
        ({"prefill_weights": "int8", "prefill_kv": "bf16"}, "--prefill-kv is of no use without pools"),
    ],
)
def test_formats_of_one_engine_that_make_no_sense(flags, said):
    options = ServeOptions(**flags)
    engine = engine_config(replace(options, executor="native"), Path("m.gguf"), "m")
    with pytest.raises(ConfigError, match=said):
        launch_of(options, engine)


def test_a_worker_that_cannot_start_is_named(byte_model):
    with (
        pytest.raises(ConfigError, match=r"worker 0: .*kv_memory_bytes"),
        running(byte_model, pools=POOLS, engine={"kv_memory_bytes": 1000}),
    ):
        pass


def test_pools_that_do_not_work_together_do_not_start(byte_model, monkeypatch):
    """As if pages had gone to the wrong places: what both say together is not what one says alone."""
    together = self_test._together

    async def garbled(*args: Any) -> list[Token]:
        return [*(await together(*args))[:-1], Token(0)]

    monkeypatch.setattr(self_test, "_together", garbled)
    with (
        pytest.raises(EngineDiedError, match="self-test of prefill worker 0 and decode worker 0 failed: they give"),
        running(byte_model, pools=POOLS),
    ):
        pass


def test_a_batch_is_behind_all_others_in_both_pools(byte_model: Path) -> None:
    with pooled(byte_model, SLOW, max_num_seqs=2, batch_concurrency=2) as server, client_of(server) as client:
        made = begun(client, texts(3, max_tokens=250))
        until(client, made.id, lambda _: server.metric("trimaran_sequences_running") >= 2)
        assert complete(client, "now", max_tokens=4).usage.completion_tokens <= 4
        assert client.batches.retrieve(made.id).request_counts.completed == 0
        batch = ended(client, made.id)
        assert batch.request_counts.completed == 3
        answers = results(client, batch.output_file_id)
        alone = server.http.post("/v1/completions", json=texts(3, max_tokens=250)[0]["body"]).json()
        assert answers[0]["response"]["body"]["choices"] == alone["choices"]
        assert_at_rest(server)
