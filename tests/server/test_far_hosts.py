"""A prefill worker on another host, behind a network that delays packets, loses them, or is down."""

import json
import os
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

from trimaran.base.errors import ConfigError
from trimaran.bench.network import ADDRESSES, Network
from trimaran.bench.wire import Weather
from trimaran.kernels.null import NullModel

from .byte_model import END, VOCAB
from .running import running

NULL = NullModel(vocab=VOCAB, context=2048, eos_id=END)  # what `trimaran worker --executor null` plays
ROOT = Path(__file__).resolve().parents[2]
PROMPTS = [letter * 1500 for letter in "abcdef"]
ROUNDS = 3
HANDOFF = 2.0  # seconds for a hand-over, and again for pages

BAD = Weather(delay=0.02, jitter=0.005, loss=0.05)
DOWN = Weather(up=False)


class Process:
    """A command on a host, whose standard error is kept."""

    def __init__(self, command: list[str]) -> None:
        environment = os.environ | {"TRIMARAN_POOL_KEY": "the key of this deployment, and of no other"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        assert self._process.stderr is not None
        self.said: list[str] = []
        self._reader = threading.Thread(target=self.said.extend, args=(self._process.stderr,), daemon=True)
        self._reader.start()

    def tell(self, what: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.communicate()
            self._reader.join(5)


@contextmanager
def process(command: list[str]) -> Iterator[Process]:
    started = Process(command)
    try:
        yield started
    finally:
        started.end()


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        network = Network()
    except ConfigError as error:
        pytest.skip(str(error))
    with network:
        yield network


class Far:
    """A server and the network between it and its prefill worker."""

    def __init__(self, network: Network, server: Process, client: Process) -> None:
        self.network = network
        self._server = server
        self._client = client

    def ask(self, *prompts: str) -> list[tuple[int, str]]:
        """Status and text, or what else was answered, of requests at the same time."""
        body = {"model": "bytes", "max_tokens": 30, "temperature": 0}
        answers = self._client.tell([["/v1/completions", body | {"prompt": prompt}] for prompt in prompts])
        return [(code, json.loads(text)["choices"][0]["text"] if code == 200 else text) for code, text in answers]

    def get(self, path: str) -> tuple[int, str]:
        code, text = self._client.tell([[path, None]])[0]
        return code, text

    def metric(self, name: str) -> float:
        return sum(float(line.split()[-1]) for line in self.get("/metrics")[1].splitlines() if line.startswith(name))

    def eventually(self, true: Any) -> None:
        until = time.monotonic() + 40
        while not true():
            assert self._server.runs, "".join(self._server.said)
            assert time.monotonic() < until, "it never became true\n" + "".join(self._server.said)
            time.sleep(0.05)


@pytest.fixture(scope="module")
def far(network: Network, byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    trimaran = [sys.executable, "-c", "from trimaran.cli import main; main()"]
    both = [str(byte_model), "--executor", "null", "--max-model-len", "2048", "--canary-interval", "0"]
    worker = [*trimaran, "worker", *both, "--role", "prefill", "--listen", f"{ADDRESSES[1]}:7000"]
    serve = [*trimaran, "serve", *both, "--port", "8000", "--served-model-name", "bytes", "--pools"]
    serve += [f"prefill={ADDRESSES[1]}:7000,decode=1", "--pool-listen", ADDRESSES[0]]
    serve += ["--files-dir", str(tmp_path_factory.mktemp("files"))]
    serve += ["--timeout-handoff", str(HANDOFF), "--timeout-queue", "30"]
    ask = [sys.executable, "-m", "tests.server.asking", "http://127.0.0.1:8000"]
    with (
        process(network.command(1, worker)),
        process(network.command(0, serve)) as server,
        process(network.command(0, ask)) as client,
    ):
        found = Far(network, server, client)
        found.eventually(lambda: found.get("/ready")[0] == 200)
        yield found


@pytest.fixture(scope="module")
def expected(byte_model: Path) -> dict[str, str]:
    """What one engine answers."""
    with running(byte_model, null=NULL) as alone, openai.OpenAI(base_url=alone.url + "/v1", api_key="x") as client:
        asked = {"model": "bytes", "max_tokens": 30, "temperature": 0}
        return {prompt: client.completions.create(prompt=prompt, **asked).choices[0].text for prompt in PROMPTS}


def at_rest(far: Far) -> bool:
    pages = far.metric("trimaran_pages_free") + far.metric("trimaran_pages_cached")
    return far.metric("trimaran_page_leases") == 0 and pages == far.metric("trimaran_pages{")


def test_answers_are_the_same_though_packets_are_late_and_lost(far: Far, expected: dict[str, str]) -> None:
    before = far.network.become(BAD)
    for _ in range(ROUNDS):
        assert far.ask(*PROMPTS) == [(200, expected[prompt]) for prompt in PROMPTS]
    after = far.network.become(Weather())
    assert after.lost > before.lost, "nothing was tried"
    far.eventually(lambda: at_rest(far))


def test_a_short_outage_costs_time_alone(far: Far, expected: dict[str, str]) -> None:
    far.network.become(DOWN)
    back = threading.Timer(HANDOFF / 4, far.network.become, [Weather()])
    back.start()
    assert far.ask(*PROMPTS) == [(200, expected[prompt]) for prompt in PROMPTS]
    back.join()


def test_while_the_network_is_down_requests_end_in_time_and_afterwards_they_are_answered(
    far: Far, expected: dict[str, str]
) -> None:
    far.network.become(DOWN)
    for code, text in far.ask(*(prompt + "x" for prompt in PROMPTS[:2])):
        assert (code, json.loads(text)["error"]["code"]) == (503, "engine_unavailable")
    far.network.become(Weather())
    far.eventually(lambda: far.ask(PROMPTS[0]) == [(200, expected[PROMPTS[0]])])
    assert far.ask(*PROMPTS) == [(200, expected[prompt]) for prompt in PROMPTS]
    far.eventually(lambda: at_rest(far))
