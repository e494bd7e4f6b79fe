"""Compressed checkpoints: what is in them, that they run, and that nothing half-written is left."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.models.families import golden, write_checkpoint, write_safetensors
from tests.models.random_values import TensorSpec
from tests.models.running import load_path, run

from trimaran.base.errors import CheckpointError, ConfigError, UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.checkpoint import open_checkpoint
from trimaran.compress import fill
from trimaran.compress.codebook import Codebook
from trimaran.compress.plan import Report
from trimaran.compress.recipe import Fp8Blocks, Int4, Recipe
from trimaran.compress.run import compress
from trimaran.quant.logical import logical_tensors

RECIPES = {"int4": Int4(32), "fp8": Fp8Blocks(), "codebook4": Codebook(4), "codebook3": Codebook(3, 2)}
HELD = {"fp8": WeightFormat.INT8}  # else as it is called
FAMILIES = ("llama3", "qwen3_moe", "deepseek_v3")


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return write_checkpoint(getattr(request, "param", "llama3"), tmp_path / "source")


def compressed(source: Path, recipe: Recipe, folder: Path, **more: object) -> Report:
    with open_checkpoint(source) as checkpoint:
        return compress(checkpoint, recipe, folder, **more)  # type: ignore[arg-type]  # of many types


def dequantised(source: Path, folder: Path) -> Path:
    """The checkpoint with every matrix multiplied out, as float32."""
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with open_checkpoint(source) as checkpoint:
        stored = [tensor.open() for tensor in logical_tensors(checkpoint)]
        tensors = [
            (TensorSpec(one.name, "F32", one.shape, 0, 0), one.values(slice(None)).reshape(one.shape)) for one in stored
        ]
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize("source", FAMILIES, indirect=True)
@pytest.mark.parametrize("fmt", RECIPES)
def test_it_runs_as_what_its_numbers_say(source: Path, fmt: str, tmp_path: Path) -> None:
    compressed(source, RECIPES[fmt], tmp_path / "small")
    name = json.loads((source / "config.json").read_text())["model_type"]
    tokens = golden("llama3" if name == "llama" else name)["tokens"][:12]
    plain = load_path(dequantised(tmp_path / "small", tmp_path / "plain"), WeightFormat.FP32)
    small = load_path(tmp_path / "small", WeightFormat.FP32)
    for executor in ("reference", "native"):
        np.testing.assert_array_equal(
            run(small, executor, tokens, [12]), run(plain, executor, tokens, [12]), err_msg=executor
        )
    own = load_path(tmp_path / "small", None)
    held = HELD.get(fmt, WeightFormat(fmt))
    assert (
        own.weights["model.layers.0.mlp.down_proj" if name != "qwen3_moe" else "model.layers.0.self_attn.qkv"].fmt
        is held
    )
    assert np.isfinite(run(own, "native", tokens, [12])).all()


def test_what_stays_is_the_same_bytes_and_is_listed(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer.json").write_text("{}")
    report = compressed(source, Int4(32), tmp_path / "small")
    with open_checkpoint(source) as old, open_checkpoint(tmp_path / "small") as new:
        before = {tensor.name: tensor for tensor in old.tensors()}
        same = [tensor for tensor in new.tensors() if tensor.name in before]
        for tensor in same:
            np.testing.assert_array_equal(tensor.data, before[tensor.name].data)
        assert report.bytes_after == new.tensor_bytes
        assert report.matrices == len(before) - len(same)
        section = new.metadata["quantization_config"]
    assert sum(kept.tensors for kept in report.kept.values()) == len(same)
    assert set(report.kept) == {
        "norms, biases and other vectors",
        "embeddings, output matrix and all outside the layers",
    }
    assert section["ignore"][0] == "lm_head"
    assert section["config_groups"]["group_0"]["weights"]["group_size"] == 32
    assert 0.05 < report.rms < 0.89 * report.plain_rms
    assert (tmp_path / "small" / "tokenizer.json").read_text() == "{}"
    assert {path.name for path in tmp_path.iterdir()} == {"source", "small"}


@pytest.mark.parametrize("source", ["kimi_k25"], indirect=True)
def test_routed_experts_alone(source: Path, tmp_path: Path) -> None:
    report = compressed(source, Int4(32), tmp_path / "small", experts_only=True)
    with open_checkpoint(tmp_path / "small") as new:
        packed = [name for name in new.names if name.endswith("weight_packed")]
        ignored = new.metadata["quantization_config"]["ignore"]
    assert packed
    assert all(".mlp.experts." in name for name in packed)
    assert "language_model.model.layers.0.self_attn.o_proj" in ignored
    assert {"parts that see images", "routers", "all but routed experts, as asked"} <= set(report.kept)


@pytest.mark.parametrize("source", ["glm52_fp8"], indirect=True)
def test_a_source_in_fp8_becomes_int4_and_the_rest_of_it_bf16(source: Path, tmp_path: Path) -> None:
    compressed(source, Int4(32), tmp_path / "small", experts_only=True)
    with open_checkpoint(source) as old, open_checkpoint(tmp_path / "small") as new:
        before = {tensor.name: tensor.open() for tensor in logical_tensors(old)}
        after = {tensor.name: tensor.open() for tensor in logical_tensors(new)}
        assert before.keys() == after.keys()
        name = "model.layers.0.self_attn.o_proj.weight"
        rounded = before[name].values(slice(None)).astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(after[name].values(slice(None)), rounded)
        assert new.metadata["quantization_config"]["quant_method"] == "compressed-tensors"
    with (
        open_checkpoint(source) as checkpoint,
        pytest.raises(UnsupportedError, match="so few bits already"),
    ):
        compress(checkpoint, Fp8Blocks(), tmp_path / "again")


@pytest.mark.parametrize("fmt", RECIPES)
def test_shards_and_pieces_change_no_number(
    source: Path, fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed(source, RECIPES[fmt], tmp_path / "one")
    monkeypatch.setattr(fill, "_PIECE", 1)
    compressed(source, RECIPES[fmt], tmp_path / "many", max_shard=20_000)
    assert len(list((tmp_path / "many").glob("model-*-of-*.safetensors"))) > 2
    with open_checkpoint(tmp_path / "one") as one, open_checkpoint(tmp_path / "many") as many:
        numbers = {tensor.name: tensor.data.tobytes() for tensor in one.tensors()}
        assert {tensor.name: tensor.data.tobytes() for tensor in many.tensors()} == numbers


def test_nothing_is_left_of_a_failure(source: Path, tmp_path: Path) -> None:
    raw = bytearray((source / "model.safetensors").read_bytes())
    with open_checkpoint(source) as checkpoint:
        span = next(span for span in checkpoint._spans if span.name.endswith("o_proj.weight"))
    raw[span.offset : span.offset + 2] = b"\xc0\x7f"  # bf16: no number
    (source / "model.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"o_proj\.weight holds numbers that are not finite"):
        compressed(source, Int4(32), tmp_path / "small")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_folder_that_exists_and_a_small_disk_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    with pytest.raises(ConfigError, match="small exists already"):
        compressed(source, Int4(32), tmp_path / "small")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(ConfigError, match="GB free"):
        compressed(source, Int4(32), tmp_path / "other")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "small"}
