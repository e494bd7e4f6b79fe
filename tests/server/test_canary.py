"""An engine that is not trusted any more: everybody is told, nobody is served, the cause is named."""

import openai
import pytest

from trimaran.host.process import EngineProcess
from trimaran.kernels.null import NullModel
from trimaran.server import restarts
from trimaran.server.launch_pools import WorkerCommand

from .byte_model import VOCAB
from .running import NAME, eventually, running

SLOW = NullModel(vocab=VOCAB, context=2048, step_seconds=0.002)
LONG = {"model": NAME, "prompt": "x", "max_tokens": 1500, "extra_body": {"ignore_eos": True}}


def test_a_deviation_ends_streams_and_readiness(byte_model, monkeypatch, caplog):
    monkeypatch.setattr(
        "trimaran.server.launch.EngineProcess", lambda config: EngineProcess(config, module="tests.server.aging_worker")
    )
    with (
        running(byte_model, null=SLOW, engine={"canary_interval": 0.3}) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client,
    ):
        assert server.http.get("/ready").status_code == 200
        stream = client.completions.create(**LONG, stream=True)
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "canary_deviated"

        ready = server.http.get("/ready")
        assert ready.status_code == 503
        assert "the canary, a prompt whose logits are known" in ready.json()["error"]["message"]
        with pytest.raises(openai.InternalServerError) as refused:
            client.completions.create(model=NAME, prompt="x")
        assert (refused.value.status_code, refused.value.code) == (503, "canary_deviated")
        assert server.http.get("/health").status_code == 200, "the process is alive, and says what is wrong"
        assert server.metric("trimaran_engine_restarts_total") == 0
        eventually(lambda: server.metric("trimaran_canary_deviations_total") == 1)
        assert server.metric("trimaran_canary_checks_total") == 3
        assert "expected" in caplog.text


def test_answers_whose_prompt_a_deviating_worker_computed_end(byte_model, monkeypatch):
    def process(command: WorkerCommand, name: str) -> EngineProcess:
        module = "tests.server.aging_worker" if name.startswith("prefill") else command.module
        return EngineProcess(command.config, module=module, name=name)

    monkeypatch.setattr(WorkerCommand, "process", process)
    pools = {"pools": "prefill=1,decode=1", "pool_self_test": False}
    with (
        running(byte_model, null=SLOW, engine={"canary_interval": 0.3}, **pools) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client,
    ):
        client.completions.create(model=NAME, prompt="y" * 100, max_tokens=1)
        with pytest.raises(openai.APIError) as caught:
            list(client.completions.create(**LONG, stream=True))
        assert caught.value.code == "canary_deviated"
        eventually(lambda: server.metric("trimaran_pages_distrusted_total", role="decode") >= 100 // 16)
        assert server.metric("trimaran_canary_deviations_total", role="decode") == 0
        with pytest.raises(openai.InternalServerError) as refused:
            client.completions.create(model=NAME, prompt="y" * 100)
        assert refused.value.status_code == 503


def test_so_do_those_of_a_worker_that_comes_back_and_computes_otherwise(byte_model, monkeypatch):
    begun = []

    def process(command: WorkerCommand, name: str) -> EngineProcess:
        again = name.startswith("prefill") and name in begun
        begun.append(name)
        return EngineProcess(command.config, module="tests.server.doubtful_worker" if again else command.module)

    monkeypatch.setattr(WorkerCommand, "process", process)
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.1)
    pools = {"pools": "prefill=1,decode=1", "pool_self_test": False}
    with (
        running(byte_model, null=SLOW, **pools) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client,
    ):
        stream = iter(client.completions.create(**LONG, stream=True))
        next(stream)
        server.worker("prefill").kill()
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "canary_deviated"


def test_no_alarm_while_requests_come_and_go(byte_model):
    with (
        running(byte_model, null=SLOW, engine={"canary_interval": 0.02}, max_num_seqs=4) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client,
    ):
        lone = client.completions.create(model=NAME, prompt="abc", max_tokens=50, temperature=0).choices[0].text
        for _ in range(4):
            again = client.completions.create(model=NAME, prompt="abc", max_tokens=50, temperature=0).choices[0].text
            assert again == lone
        eventually(lambda: server.metric("trimaran_canary_checks_total") > 4)
        assert server.metric("trimaran_canary_deviations_total") == 0
        assert server.http.get("/ready").status_code == 200
