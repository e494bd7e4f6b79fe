"""The engine dies, the server stops: nobody waits for ever, and everybody is told."""

import signal
import threading

import openai
import psutil
import pytest

from trimaran.base.errors import CheckpointError
from trimaran.engine.config import EngineConfig
from trimaran.host.process import EngineProcess
from trimaran.kernels.null import NullModel
from trimaran.server import engine as link
from trimaran.server import restarts
from trimaran.server.options import ServeOptions

from .byte_model import VOCAB
from .running import NAME, Running, eventually, running

SLOW = NullModel(vocab=VOCAB, context=2048, step_seconds=0.005)
LONG = {"model": NAME, "prompt": "x", "max_tokens": 1500, "extra_body": {"ignore_eos": True}}


def client_of(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)


class Background:
    """A request in a thread; ``result`` is the answer or what was raised."""

    def __init__(self, call) -> None:
        self.result: object = None

        def run() -> None:
            try:
                self.result = call()
            except Exception as error:
                self.result = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def join(self):
        self._thread.join(30)
        return self.result


def test_the_engine_is_killed(byte_model, monkeypatch):
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.5)
    with running(byte_model, null=SLOW) as server, client_of(server) as client:
        stream = iter(client.completions.create(**LONG, stream=True))
        next(stream)
        whole = Background(lambda: client.completions.create(**LONG))
        eventually(lambda: server.metric("trimaran_sequences_running") == 2)
        server.engine().kill()

        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "engine_unavailable"
        answer = whole.join()
        assert isinstance(answer, openai.InternalServerError)
        assert answer.status_code == 503
        assert answer.code == "engine_unavailable"

        ready = server.http.get("/ready")
        assert ready.status_code == 503
        assert "engine" in ready.json()["error"]["message"]
        assert server.http.get("/health").status_code == 200
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model=NAME, prompt="x")

        eventually(lambda: server.http.get("/ready").status_code == 200)
        assert client.completions.create(model=NAME, prompt="x", max_tokens=2).choices[0].text
        assert server.metric("trimaran_engine_restarts_total") == 1
        assert server.metric("trimaran_engine_up") == 1


def test_an_engine_that_keeps_dying_ends_the_server(byte_model, monkeypatch):
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.01)
    with running(byte_model, null=SLOW, restart_limit=1) as server:
        first = server.engine()
        first.kill()
        eventually(lambda: server.metric("trimaran_engine_restarts_total") == 1)
        server.engine().kill()
        assert server.join() == 1


def test_without_restarts_the_server_ends_with_its_engine(byte_model, caplog):
    with running(byte_model, null=SLOW, restart="never") as server, client_of(server) as client:
        asked = Background(lambda: client.completions.create(**LONG))
        eventually(lambda: server.metric("trimaran_sequences_running") == 1)
        server.engine().kill()
        assert getattr(asked.join(), "code", None) == "engine_unavailable"
        assert server.join() == 1
    assert "the engine process ended, and --restart is never" in caplog.messages


def test_an_engine_that_comes_back_with_another_model_is_not_served(byte_model, monkeypatch, caplog):
    """Tokenizer, names and digests are those of the first one."""
    module = "tests.server.changing_worker"
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr("trimaran.server.launch.EngineProcess", lambda config: EngineProcess(config, module=module))
    with running(byte_model, null=SLOW, restart_limit=1) as server:
        [engine] = [child for child in psutil.Process().children() if module in child.cmdline()]
        engine.kill()
        assert server.join() == 1
    assert "the new engine would serve another model than before" in caplog.text
    assert not [child for child in psutil.Process().children() if module in child.cmdline()]


def test_an_engine_that_lived_for_a_while_may_die_again(byte_model, monkeypatch):
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.01)
    with running(byte_model, null=SLOW, restart_limit=1, restart_stable=0.001) as server:
        for number in range(1, 4):
            server.engine().kill()
            eventually(lambda number=number: server.metric("trimaran_engine_restarts_total") == number)
        eventually(lambda: server.http.get("/ready").status_code == 200)


def test_a_silent_engine_is_not_ready(byte_model, monkeypatch):
    monkeypatch.setattr(link, "SILENT_SECONDS", 0.5)
    with running(byte_model) as server:
        server.engine().suspend()
        try:
            eventually(lambda: server.http.get("/ready").status_code == 503)
            assert "has not answered" in server.http.get("/ready").json()["error"]["message"]
        finally:
            server.engine().resume()
        eventually(lambda: server.http.get("/ready").status_code == 200)


def test_a_stuck_engine_is_replaced(byte_model, monkeypatch):
    monkeypatch.setattr(link, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.01)
    with running(byte_model, null=SLOW, timeout_engine=1.5) as server, client_of(server) as client:
        asked = Background(lambda: client.completions.create(**LONG))
        eventually(lambda: server.metric("trimaran_sequences_running") == 1)
        server.engine().suspend()
        assert getattr(asked.join(), "status_code", None) == 503
        eventually(lambda: server.metric("trimaran_engine_restarts_total") == 1)
        assert client.completions.create(model=NAME, prompt="x", max_tokens=2).usage.completion_tokens == 2


def test_stop_with_nothing_running_says_so(byte_model, caplog):
    caplog.set_level("INFO")
    with running(byte_model) as server:
        server.stop()
        assert server.join() == 0
    said = [(record.levelname, record.message) for record in caplog.records if record.name.endswith("listen")]
    assert said == [("INFO", "stopping: no request is running"), ("INFO", "stopped")]


def test_stop_lets_running_requests_finish(byte_model, caplog):
    caplog.set_level("INFO")
    with running(byte_model, null=SLOW) as server, client_of(server) as client:
        whole = Background(lambda: client.completions.create(**{**LONG, "max_tokens": 200}))
        stream = iter(client.completions.create(**{**LONG, "max_tokens": 200}, stream=True))
        next(stream)
        eventually(lambda: server.metric("trimaran_sequences_running") == 2)
        server.stop()
        eventually(lambda: server.http.get("/ready").status_code == 503)
        refused = server.http.post("/v1/completions", json={"model": NAME, "prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping")
        assert server.http.get("/v1/models").status_code == 200
        assert list(stream)[-1].choices[0].finish_reason == "length"
        assert whole.join().choices[0].finish_reason == "length"
        assert server.join() == 0
    assert "stopping: running requests (2) have 5 s to finish; a second signal ends them now" in caplog.messages


def test_stop_ends_the_rest_at_the_deadline(byte_model):
    with running(byte_model, null=SLOW, timeout_graceful_shutdown=0.2) as server, client_of(server) as client:
        whole = Background(lambda: client.completions.create(**LONG))
        stream = iter(client.completions.create(**LONG, stream=True))
        next(stream)
        eventually(lambda: server.metric("trimaran_sequences_running") == 2)
        engine = server.engine()
        server.stop()
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "stopping"
        assert whole.join().code == "stopping"
        assert server.join() == 0
        assert not engine.is_running()


def test_a_second_stop_does_not_wait(byte_model):
    with running(byte_model, null=SLOW, timeout_graceful_shutdown=60.0) as server, client_of(server) as client:
        stream = iter(client.completions.create(**LONG, stream=True))
        next(stream)
        server.stop()
        eventually(lambda: server.http.get("/ready").status_code == 503)
        server.stop()
        with pytest.raises(openai.APIError):
            list(stream)
        assert server.join() == 1


def test_a_model_that_is_none_is_refused_at_start(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no \.gguf or \.safetensors file"), running(tmp_path):
        pass


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_stop_while_starting(byte_model, caplog, number, code):
    """Nobody has to wait for a model to load in order to stop."""
    options = ServeOptions()
    engine = EngineConfig(executor="null", null=SLOW, kv_memory_bytes=2**20)
    server = Running(byte_model, options, engine)
    caplog.set_level("INFO")
    with server.http:
        server.stop(number)
        assert server.join() == code
    assert caplog.messages == ["stopped before it was ready"]
