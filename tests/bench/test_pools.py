"""The scenes, their figures, and a short run against servers without a model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.byte_model import VOCAB, write_byte_model

from trimaran.bench.arrivals import Job
from trimaran.bench.exchange import Timing
from trimaran.bench.pictures import pools_plot
from trimaran.bench.pools import Contender, Run, burst, contenders, play, replay
from trimaran.bench.pools_report import PoolsReport

NULL = ("--executor", "null", "--max-model-len", "2048", "--no-pool-self-test")


def test_contenders_share_the_same_cores():
    one, small, pools = contenders(4, [64], ["--decode-kv", "fp8"])
    assert one.flags == ("--threads", "4")
    assert small.flags == ("--threads", "4", "--max-num-batched-tokens", "64")
    assert pools.flags[-6:] == ("--prefill-threads", "2", "--decode-threads", "2", "--decode-kv", "fp8")


def test_a_burst_comes_among_streams():
    scene = burst(2, Job(64, 100), 3, Job(2048, 16), every=0.5)
    assert scene.streams == [Job(64, 100)] * 2
    assert [job.due for job in scene.others] == [0.5, 1.0, 1.5]


def test_a_trace_is_scaled_and_cut():
    scene = replay("conv.csv", [Job(1000, 100, 0.0), Job(9000, 1, 8.0)], length_scale=0.25, longest=2000)
    assert [(job.prompt, job.output) for job in scene.others] == [(250, 25), (2000, 1)]
    assert "2 requests of conv.csv in 8 s" in scene.about


def test_figures():
    stream = Timing(0.0, ended=4.0, pieces=[1.0, 2.0, 4.0], last=4.0, output_tokens=3)
    prompt = Timing(1.0, ended=3.5, pieces=[3.0, 3.5], last=3.5, output_tokens=2)
    lost = Timing(1.0, ended=2.0, error="503")
    metrics = {
        "trimaran_handoff_seconds_count": 2.0,
        "trimaran_handoff_seconds_sum": 0.1,
        "trimaran_handoff_prefill_seconds_sum": 2.0,
        "trimaran_handoff_bytes_total": 3e6,
    }
    runs = [Run("one engine", [stream], [prompt], 4.0), Run("pools", [stream], [prompt, lost], 4.0, metrics)]
    scene = burst(1, Job(1, 3), 2, Job(2, 2), every=1.0)
    report = PoolsReport("m", {"cpu": "c", "threads": 2}, [scene], [runs], {"ttft": 1500.0})
    one, pools = report.to_json()["scenes"][0]["runs"]
    assert one["ttft_ms"]["median"] == 2000
    assert one["itl_ms"]["median"] == 1500
    assert (one["goodput_share"], pools["goodput_share"]) == (0.5, pytest.approx(1 / 3))
    assert (pools["failed"], pools["errors"], pools["handoff_ms"], pools["handoff_share"]) == (1, ["503"], 50, 0.05)
    text = report.to_text()
    assert "1 failed: 503" in text
    assert "handed over 3.0 MB in 50.0 ms each, 5.0% of the time of prefill" in text
    pytest.importorskip("matplotlib")
    assert pools_plot(report.to_json()).axes


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return write_byte_model(tmp_path_factory.mktemp("bytes"))


async def test_a_contender_plays_its_scenes(model):
    scene = burst(2, Job(20, 30), 1, Job(300, 4), every=0.05)
    pools = Contender("pools", (*NULL, "--pools", "prefill=1,decode=1"))
    [run] = await play(str(model), pools, [scene], rounds=1, vocab=VOCAB - 3, progress=lambda _: None)
    assert [timing.error for timing in run.streams + run.others] == [None] * 3
    assert [timing.tokens for timing in run.streams] == [30, 30]
    assert run.metrics["trimaran_handoff_seconds_count"] == 3
    assert run.metrics["trimaran_handoff_bytes_total"] > 0
