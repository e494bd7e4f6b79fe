"""A worker on another host, which here is another loopback address."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from trimaran.base.errors import ConfigError, PeerError, TransferError
from trimaran.engine.config import EngineConfig, PoolConfig
from trimaran.kernels.null import NullModel
from trimaran.pools.handshake import MESSAGES, PAGES, prove
from trimaran.pools.key import PoolKey
from trimaran.pools.pump import PIECE
from trimaran.pools.records import Records
from trimaran.pools.relay import RelayConfig, connect
from trimaran.pools.remote_worker import RemoteWorker
from trimaran.server import restarts

from .byte_model import END, VOCAB
from .running import NAME, eventually, running

NULL = NullModel(vocab=VOCAB, context=2048, eos_id=END)  # what `trimaran worker --executor null` plays
KEY = "the key of this deployment, and of no other"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is loopback on Linux")


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TRIMARAN_POOL_KEY", KEY)
    return KEY


@pytest.fixture
def decoding(byte_model: Path, key: str) -> Iterator[str]:  # the key is in the environment
    """The address of a ``trimaran worker``."""
    command = [sys.executable, "-c", "from trimaran.cli import main; main()", "worker", str(byte_model)]
    flags = ["--role", "decode", "--executor", "null", "--max-model-len", "2048", "--canary-interval", "0"]
    process = subprocess.Popen([*command, *flags, "--listen", "127.0.0.2:0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = ""
    while "waits for servers at" not in line:
        line = process.stderr.readline()
        assert line, "it did not start"
    drain = threading.Thread(target=process.stderr.read, daemon=True)
    drain.start()
    yield line.split()[-1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    drain.join(5)
    process.stderr.close()


def complete(client: openai.OpenAI, prompt: str) -> str:
    answer = client.completions.create(model=NAME, prompt=prompt, max_tokens=30, temperature=0)
    return answer.choices[0].text


def test_answers_are_decoded_on_another_host(byte_model, decoding, monkeypatch):
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.1)
    with running(byte_model, null=NULL) as alone, openai.OpenAI(base_url=alone.url + "/v1", api_key="x") as other:
        expected = [complete(other, prompt) for prompt in ("Hello", "x" * 700)]
    pools = f"prefill=1,decode={decoding}"
    with (
        running(byte_model, null=NULL, pools=pools) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client,
    ):
        assert [complete(client, prompt) for prompt in ("Hello", "x" * 700)] == expected
        assert server.metric("trimaran_engine_up", role="decode") == 1
        server.worker("decode").kill()  # the connection to it, that is
        eventually(lambda: server.metric("trimaran_engine_restarts_total", role="decode") == 1)
        eventually(lambda: server.http.get("/ready").status_code == 200)
        assert complete(client, "x" * 700) == expected[1]


@contextmanager
def serving(config: dict[str, Any]) -> Iterator[RemoteWorker]:
    worker = RemoteWorker(config, PoolKey(KEY), "decode worker", "127.0.0.3:0")
    thread = threading.Thread(target=worker.serve)
    thread.start()
    yield worker
    worker.close()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def remote() -> Iterator[RemoteWorker]:
    pool = PoolConfig(name="decode worker", key=KEY, transports=("tcp",))
    with serving(EngineConfig(executor="null", role="decode", pool=pool).to_json()) as worker:
        yield worker


@contextmanager
def connected(remote: RemoteWorker) -> Iterator[Records]:
    records = connect(RelayConfig(remote.address, KEY, "server"))
    yield records
    records.stream.close()


def test_a_server_without_the_key_gets_nothing(remote):
    with pytest.raises(PeerError, match="different pool keys"):
        connect(RelayConfig(remote.address, "x" * 40, "server"))


def test_who_proves_itself_for_something_else_is_turned_away(remote):
    from trimaran.pools.stream import Stream
    from trimaran.pools.tcp import TcpTransport

    stream = Stream(TcpTransport(PoolKey(KEY)).open_connection(remote.address, 5))
    with pytest.raises(TransferError):
        prove(stream, PoolKey(KEY), "a sender of pages", PAGES, dialled=True, until=time.monotonic() + 5)
    stream.close()


def test_what_an_engine_refuses_comes_through():
    with serving({"nonsense": 1}) as worker, connected(worker) as records:
        _, data = records.read(PIECE, 30)
        assert b"unknown engine option nonsense" in bytes(data)


def test_a_new_server_takes_the_place_of_an_old_one(remote):
    with connected(remote) as first:
        assert b"Started" in bytes(first.read(PIECE, 30)[1])
        with connected(remote) as second:
            with pytest.raises(TransferError):
                _read_to_the_end(first)
            assert b"Started" in bytes(second.read(PIECE, 30)[1])


def _read_to_the_end(records: Records) -> None:
    while True:
        records.read(PIECE, 30)


def test_an_address_that_cannot_be_had():
    with pytest.raises(ConfigError, match="cannot listen"):
        RemoteWorker({}, PoolKey(KEY), "worker", "203.0.113.1:7000")


def test_purposes_have_one_length():
    assert len(PAGES) == len(MESSAGES)
