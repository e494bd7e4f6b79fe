"""``bench kv --trace``: a trace in Mooncake's format becomes prompts that share prefixes, and is replayed both ways."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from models.families import write_checkpoint
from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat
from trimaran.bench.mooncake import read_trace
from trimaran.bench.sharing import Measured, SharingReport, SharingSetup
from trimaran.cli.app import app

LINES = [
    {"timestamp": 1000, "input_length": 1100, "output_length": 40, "hash_ids": [0, 1, 2]},
    {"timestamp": 1500, "input_length": 1024, "output_length": 1, "hash_ids": [0, 1]},
    {"timestamp": 3000, "input_length": 90000, "output_length": 10, "hash_ids": list(range(20, 196))},
    {"timestamp": 3000, "input_length": 600, "output_length": 64, "hash_ids": [0, 7]},
    {"timestamp": 9000, "input_length": 512, "output_length": 64, "hash_ids": [8]},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)) + "\n")
    return file


def test_prompts_share_what_the_trace_shares(path):
    trace = read_trace(path, limit=3, scale=1 / 16, context=200)
    assert (trace.block, trace.left_out, len(trace.requests)) == (32, 1, 3)
    first, second, third = trace.jobs(vocab=1000, seed=5, time_scale=0.5)
    assert [len(job.prompt) for job in (first, second, third)] == [69, 64, 38]
    assert [job.output for job in (first, second, third)] == [2, 1, 4]
    assert [job.due for job in (first, second, third)] == [0.0, 0.25, 1.0]
    assert first.prompt[:64] == second.prompt
    assert first.prompt[:32] == third.prompt[:32]
    assert first.prompt[32:38] != third.prompt[32:], "block 1 is not block 7"
    assert all(3 <= token < 1000 for token in first.prompt)
    other, *_ = trace.jobs(vocab=1000, seed=6, time_scale=0.5)
    assert other.prompt[:32] != first.prompt[:32]


def test_a_line_with_too_few_blocks_is_filled_up(path):
    path.write_text(json.dumps(LINES[1] | {"input_length": 5000}) + "\n" + json.dumps(LINES[1] | {"hash_ids": []}))
    first, second = read_trace(path, 5, 1 / 16, 400).jobs(100, 0, 0.0)
    assert (len(first.prompt), len(second.prompt)) == (312, 64)
    assert first.prompt[:64] != second.prompt


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "line 1 of the trace .* is no request: Object missing required field `timestamp`"),
        ("[1", "line 1 of the trace .* is no request"),
        (json.dumps(LINES[0] | {"hash_ids": [-1]}), "it has a negative number"),
        (json.dumps(LINES[2]), "no request of the trace .* fits 100 tokens; lower --scale"),
        ("", "no request"),
    ],
)
def test_what_is_no_trace_is_refused(path, text, said):
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_trace(path, 5, 1 / 16, 100)


def test_a_missing_trace_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read"):
        read_trace(tmp_path / "none.jsonl", 5, 1.0, 100)


def test_both_ways_give_the_same_tokens(tmp_path, path):
    model = write_checkpoint("qwen3", tmp_path / "model")
    load = ["--trace", path, "--scale", 1 / 32, "--formats", "int8", "--concurrency", 3, "--shared", "20"]
    load += ["--kv-cache-memory-bytes", "200KB", "--threads", 1, "--rounds", 2, "--plot", tmp_path / "kv.svg", "--json"]
    result = CliRunner().invoke(app, ["bench", "kv", str(model), *map(str, load)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [case["case"] for case in found["cases"]] == ["trace.jsonl, 3 at a time", "decode 3 x (20 shared + 16)"]
    assert all(case["same_tokens"] for case in found["cases"])
    assert all(len(case["apart_tokens_per_second"]) == 2 for case in found["cases"])
    assert found["trace"]["block_tokens"] == 16
    assert 0 < found["trace"]["cached_prompt_tokens"] < 1
    assert (tmp_path / "kv.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--formats", "int8,bf16"], "--trace takes one of --formats"),
        (["--concurrency", "1,2"], "and one --concurrency"),
        (["--shared", "0"], "--shared takes positive numbers"),
        (["--scale", "2"], "'--scale'"),
    ],
)
def test_what_a_trace_cannot_use_is_refused(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"")
    result = CliRunner().invoke(app, ["bench", "kv", "m.gguf", "--trace", "t.jsonl", *arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


def test_gains_are_of_rounds(path):
    setup = SharingSetup(Path("m"), 2**20, KVFormat.INT8, 4, path)
    case = Measured("a case", apart=[100.0, 200.0, 100.0], together=[120.0, 220.0, 90.0], same=False)
    machine = {"cpu": "c", "threads": 2, "isa": "i", "system": "s"}
    report = SharingReport(setup, read_trace(path, 5, 1 / 16, 400), machine, [case])
    assert case.gain == pytest.approx(0.1)
    line = report.to_text().splitlines()[-1]
    assert line.split() == ["a", "case", "100", "120", "+10.0%", "NO"]
