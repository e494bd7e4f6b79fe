"""``trimaran eval quality`` as a user types it, on models of a few kilobytes."""

import json
import re
from pathlib import Path

import pytest
from tests.evaluate.tiny import write_tiny
from typer.testing import CliRunner, Result

from trimaran.calibration.kv_ranges import measure_ranges, write_ranges
from trimaran.checkpoint import open_checkpoint
from trimaran.cli.app import app


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("eval") / "tiny"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 sums. To a random model the right one is as good as the other; two models find other ones right."""
    file = tmp_path_factory.mktemp("data") / "sums.jsonl"
    sums = [(f"{a} plus {b} is", f" {a + b}", f" {a * b + 1}") for a in range(20) for b in range(15)]
    lines = [{"context": context, "options": options, "answer": 0} for context, *options in sums]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def test_the_page_names_flags_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs" / "quality.md").read_text()
    known = CliRunner().invoke(app, ["eval", "quality", "--help"], env={"COLUMNS": "200"}).stdout
    named = set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*(?![\w-]*…)", page))
    assert len(named) > 12
    assert {flag for flag in named if flag not in known} == set()


def quality(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["eval", "quality", *arguments, "--threads", "2"])


def test_a_format_that_costs_little_passes(model: str, data: str) -> None:
    done = quality(model, "--only", "kl,tasks,code", "--data", data, "--kv-cache-dtype", "fp32", "--max-kl", "0.01")
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "KL, mean" in done.stdout
    assert "sums, 300 items: right" in done.stdout
    assert "code, 50 items: right" in done.stdout
    assert "MISSED" not in done.stdout


def test_a_limit_that_is_passed_makes_the_status_1(model: str) -> None:
    arguments = (model, "--only", "kl", "--kv-cache-dtype", "int4", "--kv-cache-dtype", "bf16")
    assert quality(*arguments).exit_code == 0
    done = quality(*arguments, "--max-kl", "1e-9")
    assert done.exit_code == 1
    assert "MISSED by int4: mean KL" in done.stdout
    assert "MISSED by bf16" not in done.stdout


def test_a_model_that_has_lost_its_weights_does_not_pass(model: str, data: str, tmp_path: Path) -> None:
    other = str(write_tiny(tmp_path / "other", seed=1))
    lost = quality(other, "--against", model, "--only", "tasks", "--data", data)
    assert lost.exit_code == 1
    assert "the accuracy lost may be" in lost.stdout


def test_a_model_that_computes_no_numbers_does_not_pass(model: str, data: str, tmp_path: Path) -> None:
    broken = str(write_tiny(tmp_path / "broken", nan_in="model.layers.0.mlp.up_proj.weight"))
    done = quality(broken, "--against", model, "--only", "kl,tasks", "--data", data, "--json")
    assert done.exit_code == 1
    figures = json.loads(done.stdout)["costs"][0]
    assert figures["tasks"]["all"]["accuracy"] == 0
    assert any("not a finite number" in miss for miss in figures["misses"])


def test_json_has_every_figure(model: str, data: str) -> None:
    done = quality(
        model, "--only", "kl,tasks,needle", "--data", data, "--items", "10", "--kv-cache-dtype", "int8", "--json"
    )
    found = json.loads(done.stdout)
    assert found["reference"]["formats"]["kv"] == "bf16"
    assert found["candidates"][0]["formats"]["kv"] == "int8"
    cost = found["costs"][0]
    assert cost["tasks"]["sums"]["items"] == 10
    assert cost["tasks"]["all"]["bound"] > 0.8, "ten items prove little"
    assert cost["needle_lengths"].keys() == {"256", "512", "1024"}
    assert cost["divergence"]["tokens"] == 3 * 448
    assert cost["validity"] == {}
    assert done.exit_code == 1


def test_prefill_in_one_format_and_decode_in_another(model: str, data: str) -> None:
    formats = ("--kv-cache-dtype", "int4", "--prefill-kv-cache-dtype", "bf16")
    few = ("--tokens", "40", "--data", data, "--items", "20", "--max-loss", "99")
    done = quality(model, "--only", "kl,tasks", *formats, *few, "--json")
    assert done.exit_code == 0, done.stdout + done.stderr
    mixed = json.loads(done.stdout)["costs"][0]["divergence"]
    assert mixed["first_mean"] > 0
    assert set(mixed["texts"]) == {f"{name} from {at}" for name in ("code", "gsm8k", "verse") for at in (10, 20, 30)}


def test_layers_that_stay_bf16_cost_nothing(model: str) -> None:
    pages = ("--only", "kl", "--kv-cache-dtype", "int4", "--max-kl", "0")
    assert quality(model, *pages, "--kv-cache-dtype-skip-layers", "1").exit_code == 1
    assert quality(model, *pages, "--kv-cache-dtype-skip-layers", "0,1").exit_code == 0


def test_static_scales_are_calibrated_first(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_HOME", str(tmp_path))
    pages = ("--only", "kl", "--kv-cache-dtype", "int8-static")
    refused = quality(model, *pages)
    assert refused.exit_code == 2
    assert "trimaran calibrate" in refused.stderr
    with open_checkpoint(Path(model)) as checkpoint:
        write_ranges(tmp_path / "ranges.json", measure_ranges(checkpoint, [list(range(90))]))
    scales = ("--kv-cache-scales", str(tmp_path / "ranges.json"))
    one = json.loads(quality(model, *pages, *scales, "--json").stdout)["costs"][0]["divergence"]
    assert 0 < one["mean"] < 1
    mixed = quality(model, *pages, *scales, "--prefill-kv-cache-dtype", "bf16", "--json")
    assert 0 < json.loads(mixed.stdout)["costs"][0]["divergence"]["first_mean"] < 1


def test_a_text_of_ones_own(model: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("It was a dark and stormy night; the rain fell in torrents.")
    assert "mine" in quality(model, "--only", "kl", "--text", str(file)).stdout
    file.write_text("short")
    done = quality(model, "--only", "kl", "--text", str(file))
    assert done.exit_code == 2
    assert "has only 5 tokens; 8 are the least" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--only", "kl,speed"], "--only 'speed' is none of kl, tasks, needle, validity, code"),
        (["--activations", "int3"], "--activations 'int3' is none of fp32, int8"),
        (["--executor", "null"], "--executor 'null' computes nothing to measure"),
        (["--only", "tasks", "--data", "no.jsonl"], "cannot read no.jsonl"),
    ],
)
def test_wrong_options_are_named(model: str, arguments: list[str], reason: str) -> None:
    done = quality(model, *arguments)
    assert done.exit_code == 2
    assert reason in done.stderr


def test_what_the_context_cannot_hold_is_left_out(model: str, tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    lines = [{"context": "x" * length, "options": ["a", "b"], "answer": 0} for length in (2000, 1500, 20)]
    file.write_text("\n".join(map(json.dumps, lines[:2])))
    done = quality(model, "--only", "tasks", "--data", str(file))
    assert done.exit_code == 2
    assert "nothing is left to measure: the model's context of 1024 tokens" in done.stderr
    file.write_text("\n".join(map(json.dumps, lines)))
    done = quality(model, "--only", "tasks", "--data", str(file), "--max-loss", "999")
    assert done.exit_code == 0
    assert "2 items are longer than the model's context" in done.stderr


def test_models_of_other_vocabularies_are_refused(model: str, smollm2: Path) -> None:
    done = quality(model, "--against", str(smollm2), "--only", "kl")
    assert done.exit_code == 2
    assert "different vocabularies" in done.stderr
