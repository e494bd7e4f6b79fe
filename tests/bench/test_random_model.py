"""``bench/random_model.py`` writes a file that our reader loads and our executor runs."""

import pytest

from trimaran.bench.cases import Decode
from trimaran.bench.run import Setup, run
from trimaran.checkpoint import open_checkpoint
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config
from trimaran.quant.gguf_blocks import dequantise

from .scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("random_model")


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_the_file_loads_in_its_own_grid_and_is_measured(script, kind, tmp_path, capsys):
    path = tmp_path / "random.gguf"
    script.main(["tiny", str(path), "--format", kind])
    assert "MB" in capsys.readouterr().err
    with open_checkpoint(path) as checkpoint:
        config = read_config(checkpoint)
        weights = load_weights(checkpoint, config, build_program(config), None)
        deviations = {tensor.name: dequantise(tensor).std() for tensor in checkpoint.tensors()}
    assert weights["model.layers.1.mlp.down_proj"].fmt == {"Q4_0": "int4", "Q4_1": "int4z"}[kind]
    assert weights["lm_head"].fmt == "int8"
    assert deviations["blk.0.ffn_down.weight"] == pytest.approx(96**-0.5, rel=0.1)
    assert deviations["token_embd.weight"] == pytest.approx(64**-0.5, rel=0.1)
    report = run(Setup(model=path, threads=1, rounds=1), [Decode(8, 2)], lambda _: None)
    assert report.lines[0].rates["engine"][0] > 0


def test_a_model_with_experts_is_measured_against_the_experts_that_it_reads(script, tmp_path):
    path = tmp_path / "random.gguf"
    script.main(["tiny-moe", str(path), "--format", "Q4_0"])
    report = run(Setup(model=path, threads=1, rounds=1), [Decode(8, 2), Decode(8, 2, 3)], lambda _: None)
    alone, together = (line.step_bytes for line in report.lines)
    expert, page_row = 3 * 64 * 32 * 18 // 32, 2 * (2 * 32 + 8)
    read = 2 * expert * (4 * (1 - (1 - 2 / 4) ** 3) - 2)  # in both layers, of 4 experts 2 alone, 3.5 for three rows
    assert together - alone == pytest.approx(read + 2 * 10 * page_row, abs=1)


def test_the_large_shape_is_that_of_its_model(script):
    shape = script.SHAPES["qwen2.5-1.5b"]
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    layers = shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
    assert layers + shape.vocab * shape.hidden == pytest.approx(1.54e9, rel=0.01)
