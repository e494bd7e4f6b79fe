import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.bench.cases import Decode, EndToEnd, Mixed, Prefill
from trimaran.bench.compare import Line, Report
from trimaran.bench.peers import Peers
from trimaran.cli.app import app


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Replaces the measurement; what it was asked for is noted, and every case gets a figure."""
    calls = []

    def run(setup, cases, progress):
        progress("working")
        calls.append((setup, cases))
        machine = {"cpu": "c", "threads": 2, "isa": "i", "system": "s"}
        machine |= {"int8_tops": 1.0, "fp32_tflops": 1.0}
        lines = [Line(case, [200.0], {"engine": [100.0]}) for case in cases]
        return Report("m", machine, "f", setup.rounds, (), lines, [1.0], 0.0)

    monkeypatch.setattr("trimaran.bench.run.run", run)
    (tmp_path / "m.gguf").write_bytes(b"")
    return calls, str(tmp_path / "m.gguf")


def test_latency_prints_a_table(asked):
    calls, model = asked
    result = CliRunner().invoke(app, ["bench", "latency", model, "--length", "8,16", "--depth", "32", "--steps", "4"])
    assert result.exit_code == 0, result.output
    [(setup, cases)] = calls
    assert cases == [Prefill(8), Prefill(16), Decode(32, 4)]
    assert (setup.weight_format, setup.kv_format) == (None, None)
    assert (setup.peers, setup.over_http) == (Peers(), False)
    assert "prefill 16" in result.stdout
    assert "50%" in result.stdout


def test_throughput_prints_json(asked):
    calls, model = asked
    flags = ["--sequences", "1,8", "--requests", "9", "--weight-format", "bf16", "--kv-cache-dtype", "fp32"]
    flags += ["--rounds", "2", "--threads", "2", "--output", "96", "--json"]
    result = CliRunner().invoke(app, ["bench", "throughput", model, *flags])
    assert result.exit_code == 0, result.output
    [(setup, cases)] = calls
    assert cases == [Decode(128, 32, 1), Decode(128, 32, 8), EndToEnd(8, 128, 96), Mixed(9)]
    assert (setup.weight_format, setup.kv_format) == (WeightFormat.BF16, KVFormat.FP32)
    assert (setup.rounds, setup.threads) == (2, 2)
    report = json.loads(result.stdout)
    assert [case["median"]["engine"] for case in report["cases"]] == [100.0] * 4


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_peers_are_named_by_flags(asked, command):
    calls, model = asked
    flags = ["--peer", "llama.cpp", "--peer", "openvino", "--peers-dir", "a", "--peer-python", "b", "--peer-model", "c"]
    result = CliRunner().invoke(app, ["bench", command, model, *flags, "--http"])
    assert result.exit_code == 0, result.output
    [(setup, _)] = calls
    assert setup.peers == Peers(("llama.cpp", "openvino"), Path("a"), Path("b"), Path("c"))
    assert setup.over_http


def test_figures_are_drawn_when_asked_for(asked, tmp_path):
    _, model = asked
    picture = tmp_path / "speed.svg"
    result = CliRunner().invoke(app, ["bench", "latency", model, "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    assert "<svg" in picture.read_text()
    assert "prefill 16" in result.stdout
    (tmp_path / "folder.svg").mkdir()
    result = CliRunner().invoke(app, ["bench", "latency", model, "--plot", str(tmp_path / "folder.svg")])
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert "prefill 16" in result.stdout  # what took minutes is not lost


@pytest.mark.parametrize("length", ["", "a", "0", "8,-1"])
def test_lengths_that_are_no_numbers_are_refused(asked, length):
    calls, model = asked
    result = CliRunner().invoke(app, ["bench", "latency", model, "--length", length])
    assert result.exit_code == 2
    assert "--length takes positive numbers" in " ".join(result.output.split())
    assert calls == []
