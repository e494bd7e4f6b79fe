"""``trimaran bench serve`` against a server of ours that computes nothing."""

import asyncio
import json
import os
import signal
import threading
import time

import pytest
from tests.server.byte_model import END, VOCAB, write_byte_model
from tests.server.running import running
from typer.testing import CliRunner

from trimaran.base.errors import ConfigError, TrimaranError
from trimaran.bench.arrivals import Job, poisson
from trimaran.bench.load import Target, load
from trimaran.cli.app import app
from trimaran.kernels.null import NullModel

KEY = "a-key-nobody-may-see"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with running(write_byte_model(tmp_path_factory.mktemp("bytes")), api_key=(KEY,)) as server:
        server.http.headers["authorization"] = f"Bearer {KEY}"
        yield server.url


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A server whose answers take much longer than any test waits."""
    null = NullModel(vocab=VOCAB, context=2048, eos_id=END, eos_one_in=64, step_seconds=0.05)
    with running(write_byte_model(tmp_path_factory.mktemp("slow")), null=null) as server:
        yield server


def run_steadily(server, count: int) -> None:
    """Waits until ``count`` sequences have been running for half a second."""
    seen = 0
    while seen < 10:
        time.sleep(0.05)
        seen = seen + 1 if server.metric("trimaran_sequences_running") == count else 0


def bench(url: str, *flags: str):
    return CliRunner().invoke(
        app, ["bench", "serve", "--url", url, "--vocab", "90", *flags], env={"TRIMARAN_API_KEY": KEY}
    )


def test_a_closed_loop_gets_exactly_the_tokens_it_asks_for(url):
    flags = ["--concurrency", "4", "--requests", "12", "--prompt-tokens", "20", "--output-tokens", "9", "--ignore-eos"]
    result = bench(url, *flags, "--goodput", "ttft:60000 tpot:60000", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["model"], figures["ok"], figures["failed"]) == ("bytes", 12, 0)
    assert (figures["prompt_tokens"], figures["output_tokens"], figures["tokens_counted_by"]) == (240, 108, "server")
    assert figures["goodput_share"] == 1
    assert 0 < figures["ttft_ms"]["median"] <= figures["e2e_ms"]["median"]
    assert figures["tpot_ms"]["p99"] > 0


@pytest.mark.parametrize("kind", ["--chat", "--text"])
def test_an_open_loop_of_words(url, kind):
    result = bench(
        url + "/v1", kind, "--rate", "200", "--requests", "8", "--prompt-tokens", "5", "--output-tokens", "4"
    )
    assert result.exit_code == 0, result.output
    assert "requests: 8 ok, 0 failed" in result.stdout
    assert "late at worst" in result.stdout


def test_a_trace_gives_lengths_and_times(url, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,3\n0.2,20,5\n0.4,30,7\n")
    result = bench(url, "--trace", str(trace), "--ignore-eos", "--json", "--requests", "2", "--time-scale", "2")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (30, 8)
    assert figures["seconds"] > 0.4


def test_failed_requests_are_counted_and_the_key_stays_hidden(url):
    result = bench(url, "--requests", "3", "--model", KEY, "--warm-up", "0")
    assert result.exit_code == 1
    assert "requests: 0 ok, 3 failed" in result.stdout
    assert "404" in result.stdout
    result = bench(url, "--requests", "3", "--api-key", "wrong-" + KEY)
    assert result.exit_code == 1
    assert "401" in result.output
    assert KEY not in result.output


def test_what_cannot_be_asked_for_ends_before_the_load(url):
    result = bench(url, "--prompt-tokens", "5000")
    assert result.exit_code == 1
    assert "does not serve what is asked: 400" in result.output
    result = bench(url, "--rate", "1", "--concurrency", "1")
    assert result.exit_code == 2
    assert "exclude each other" in " ".join(result.output.split())


@pytest.mark.parametrize("address", ["localhost:1", "ftp://a", "http://", "http://a:b"])
async def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match="--url"):
        await load(Target(address), [Job(1, 1)])


async def test_a_key_that_no_header_may_hold_is_refused_without_showing_it():
    with pytest.raises(ConfigError, match="API key") as caught:
        await load(Target("http://127.0.0.1:1", api_key="se\ncret"), [Job(1, 1)])
    assert "cret" not in str(caught.value)


async def test_a_server_that_is_not_there_is_an_error():
    with pytest.raises(TrimaranError, match="does not say which model"):
        await load(Target("http://127.0.0.1:1"), [Job(1, 1)])


async def test_every_request_has_a_deadline(slow):
    began = time.monotonic()
    found = await load(Target(slow.url, vocab=90, ignore_eos=True, timeout=0.3), [Job(4, 1000)] * 4, concurrency=2)
    assert [timing.error for timing in found.timings] == ["no end within 0.3 s"] * 4
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("concurrency", [None, 2])
async def test_cancelling_returns_what_there_is(slow, concurrency):
    jobs = poisson([Job(4, 1), Job(4, 1000), Job(4, 1000)], rate=100, seed=0)
    loading = asyncio.create_task(load(Target(slow.url, vocab=90, ignore_eos=True), jobs, concurrency))
    await asyncio.to_thread(run_steadily, slow, 2)
    loading.cancel()
    found = await loading
    assert (found.interrupted, len(found.timings), found.cut_off) == (True, 1, 2)


def test_ctrl_c_prints_what_there_is(slow):
    def interrupt() -> None:
        run_steadily(slow, 1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = bench(slow.url, "--output-tokens", "1000", "--ignore-eos", "--warm-up", "0", "--requests", "2")
    thread.join()
    assert result.exit_code == 130, result.output
    assert "1 cut off" in result.stdout
