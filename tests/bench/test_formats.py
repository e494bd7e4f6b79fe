"""``bench kv`` and ``bench weights``: measured on tiny models, and what the reports make of figures."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from models.families import write_checkpoint
from trimaran.base.formats import KVFormat
from trimaran.bench.cases import Decode, Mixed, Prefill
from trimaran.bench.closed_loop import Flow
from trimaran.bench.kv_report import KVReport, KVSetup, Level
from trimaran.bench.weights import WeightsReport, weights_cases
from trimaran.cli.app import app


def bench(*arguments):
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_formats_of_pages_share_a_memory(tmp_path):
    model = write_checkpoint("qwen3", tmp_path / "model")
    load = ["--prompt-tokens", 20, "--output-tokens", 4, "--depth", 24, "--concurrency", "1,12", "--threads", 1]
    load += ["--formats", "bf16,int8,int4", "--kv-cache-memory-bytes", "100KB", "--json", "--rounds", 2]
    found = json.loads(bench("kv", model, *load, "--plot", tmp_path / "kv.svg"))
    bf16, int8, int4 = found["formats"]
    assert bf16["resident_tokens"] < int8["resident_tokens"] < int4["resident_tokens"]
    assert bf16["resident_ratio"] == 1
    assert all(len(fmt["deep_tokens_per_second"]) == 2 for fmt in found["formats"])
    assert [level["concurrency"] for level in found["levels"]] == [1, 1, 1, 12, 12, 12]
    assert all(len(level["tokens_per_second_by_round"]) == 2 for level in found["levels"])
    assert all(0 < level["most_pages"] <= level["pages"] for level in found["levels"])
    narrow = found["levels"][3]
    assert (narrow["format"], narrow["relative_cost"]) == ("bf16", 1)
    assert narrow["most_waiting"] + narrow["preemptions"] > 0, "100 KB of bf16 do not hold 12 requests"
    assert (tmp_path / "kv.svg").exists()


def test_formats_of_weights_stand_beside_each_other(tmp_path):
    model, other = write_checkpoint("qwen3", tmp_path / "model"), write_checkpoint("llama3", tmp_path / "other")
    load = ["--sequences", "1,3", "--depth", 8, "--steps", 2, "--prompt-tokens", 12, "--rounds", 2, "--threads", 1]
    found = json.loads(bench("weights", model, other, "--formats", "int8,bf16,int8,bf16/int8", *load, "--json"))
    assert [candidate["name"] for candidate in found["candidates"]] == ["int8", "bf16", "bf16/int8", "other"]
    int8, bf16, both, _ = found["candidates"]
    assert both["weights"].startswith("prefill bf16, decode int8")
    assert bf16["weight_bytes"] < both["weight_bytes"] < bf16["weight_bytes"] + int8["weight_bytes"]
    assert int8["weight_bytes"] < bf16["weight_bytes"]
    assert int8["weights"].startswith("int8")
    assert [case["case"] for case in found["cases"]] == ["decode 1 x depth 8", "decode 3 x depth 8", "prefill 12"]
    assert all(len(rates) == 2 for case in found["cases"] for rates in case["rates"].values())
    assert len(found["crossovers"]) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kv", "m.gguf", "--formats", "bf16,fp4"], "'fp4' is not one of fp32"),
        (["kv", "m.gguf", "--concurrency", "0"], "--concurrency takes positive numbers"),
        (["kv", "m.gguf", "--kv-cache-memory-bytes", "much"], "'much' is not a size"),
        (["kv", "m.gguf", "--plot", "kv.gif"], "must end in .svg"),
        (["weights", "m.gguf", "--formats", "int3"], "'int3' is not one of auto"),
        (["weights", "m.gguf", "--formats", "int8,int8/int3"], "'int3' is not one of auto"),
        (["weights", "m.gguf", "--formats", "int8/int4/int4"], "'int8/int4/int4' is neither a format nor two"),
        (["weights", "m.gguf", "m.gguf", "m.gguf"], "two of the models have the same name"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"")
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


def level(fmt: KVFormat, concurrency: int, rate: int, **counts: int) -> Level:
    return Level(fmt, concurrency, [Flow(seconds=1.0, tokens=rate, gaps=[0.010, 0.030], **counts)])


def test_weights_meet_requests_of_many_lengths_too():
    assert weights_cases([2], 8, 3, 12, 5) == [Decode(8, 3, 2), Prefill(12), Mixed(5)]
    assert weights_cases([2], 8, 3, 12) == [Decode(8, 3, 2), Prefill(12)]


def test_costs_and_peaks_of_pages():
    formats = (KVFormat.FP8, KVFormat.BF16)
    setup = KVSetup(Path("m"), 2**20, formats, (1, 64), depth=0)
    levels = [level(KVFormat.FP8, 1, 90), level(KVFormat.BF16, 1, 100)]
    levels += [level(KVFormat.FP8, 64, 300), level(KVFormat.BF16, 64, 200, most_waiting=29, preemptions=3)]
    machine = {"cpu": "c", "threads": 2, "isa": "i", "system": "s"}
    resident, pages = {KVFormat.FP8: 200, KVFormat.BF16: 100}, {KVFormat.FP8: 20, KVFormat.BF16: 10}
    report = KVReport(setup, machine, resident, pages, levels)
    assert report.base is KVFormat.BF16
    assert [round(report.cost(each), 2) for each in levels] == [1.11, 1.0, 0.67, 1.0]
    assert report.peak(KVFormat.FP8).concurrency == 64
    assert levels[0].gap(50) == pytest.approx(20.0)
    text = report.to_text()
    assert "2.00" in text
    assert "29" in text


def test_crossovers_of_weights():
    cases = [Decode(8, 4, 16), Decode(8, 4, 1), Decode(8, 4, 4), Prefill(8)]
    machine = {"cpu": "c", "threads": 2, "isa": "i", "system": "s"}
    sizes = {"int8": 2, "int4": 1, "bf16": 4}
    speeds = {"int4": (20, 50, 90), "int8": (10, 50, 100), "bf16": (5, 60, 80)}  # of 1, 4, 16 sequences
    rates = {("prefill 8", name): [1.0] for name in sizes}
    for name, (one, four, sixteen) in speeds.items():
        rates |= {(cases[1].name, name): [one], (cases[2].name, name): [four], (cases[0].name, name): [sixteen]}
    report = WeightsReport(machine, 1, cases, sizes, dict.fromkeys(sizes, ""), rates)
    assert report.crossovers() == [("int4", "int8", 4), ("int4", "bf16", None), ("int8", "bf16", None)]
    assert "int8 decodes as fast or faster from 4 sequences on" in report.to_text()
