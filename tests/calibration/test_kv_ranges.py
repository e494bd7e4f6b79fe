"""Ranges of keys and values: what they are, their file, and the scales that static formats get from them."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.models.families import golden, tensor_specs, write_checkpoint, write_safetensors
from tests.models.random_values import TensorSpec, tensor

from trimaran.base.errors import CheckpointError, ConfigError, UnsupportedError
from trimaran.base.formats import ActivationFormat, KVFormat, hadamard_width
from trimaran.calibration.kv_ranges import Ranges, default_path, measure_ranges, read_ranges, scales_for, write_ranges
from trimaran.calibration.stored_scales import stored_scales
from trimaran.checkpoint import Checkpoint, open_checkpoint
from trimaran.kernels import reference_ops as ops
from trimaran.kernels.open import open_executor
from trimaran.kernels.program import Program
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.reference_pages import KEYS, VALUES
from trimaran.kernels.step import ExecutorOptions, StepInputs
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIMARAN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(params=["qwen3", "gemma3_text"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path):
    with open_checkpoint(write_checkpoint(request.param, tmp_path / "model")) as opened:
        yield opened


def tokens(checkpoint: Checkpoint) -> list[int]:
    return np.random.default_rng(1).integers(0, read_config(checkpoint).vocab, 50).tolist()


def opened(checkpoint: Checkpoint, text: list[int]) -> tuple[Program, ReferenceExecutor]:
    """A reference executor whose fp32 pages hold ``text``."""
    model = read_config(checkpoint)
    program = build_program(model)
    options = ExecutorOptions(KVFormat.FP32, ActivationFormat.FP32, num_pages=6, max_rows=64, max_sequences=1)
    executor = ReferenceExecutor(program, load_weights(checkpoint, model, program, None), options)
    table = np.arange(1, 5, dtype=np.int32)[None]
    zero = np.zeros(1, np.int32)
    executor.run(
        StepInputs(
            np.array(text, np.int32),
            np.array([0, len(text)], np.int32),
            zero,
            zero,
            tuple(table for _ in program.groups),
            np.array([len(text) - 1], np.int32),
            want_logits=False,
        )
    )
    return program, executor


def test_ranges_are_the_largest_numbers_that_pages_hold(checkpoint: Checkpoint) -> None:
    text = tokens(checkpoint)
    ranges = measure_ranges(checkpoint, [text])
    assert (ranges.model, ranges.tokens, len(ranges.layers)) == (checkpoint.sampled, 50, read_config(checkpoint).layers)
    program, executor = opened(checkpoint, text)
    attention = [op for op in program.ops if hasattr(op, "kv_heads")]
    for op, layer in zip(attention, ranges.layers, strict=True):
        pages, table = executor._heads[op.group], np.arange(1, 5)
        keys, _ = pages.read(op.layer, KEYS, table, 0, 50)
        values, _ = pages.read(op.layer, VALUES, table, 0, 50)
        turned = [ops.hadamard(part, hadamard_width(KVFormat.INT8_STATIC, op.head_dim)) for part in (keys, values)]
        for found, held in zip(
            (layer.keys, layer.values, layer.turned_keys, layer.turned_values), (keys, values, *turned), strict=True
        ):
            np.testing.assert_allclose(found, np.abs(held).max(axis=(0, 2)), rtol=1e-3)


@pytest.mark.parametrize(("fmt", "steps", "part"), [("fp8-static", 448, ""), ("int8-static", 127, "turned_")])
def test_scales_reach_from_zero_to_the_largest(checkpoint: Checkpoint, fmt: str, steps: int, part: str) -> None:
    ranges = measure_ranges(checkpoint, [tokens(checkpoint)])
    program = build_program(read_config(checkpoint))
    (scales,) = ranges.scales(KVFormat(fmt), program)
    assert ranges.scales(KVFormat.INT8, program) == ()
    attention = [op for op in program.ops if hasattr(op, "kv_heads")]
    for op, layer in zip(attention, ranges.layers, strict=True):
        found = scales.groups[op.group]
        assert found is not None
        np.testing.assert_allclose(found[0, op.layer] * steps, getattr(layer, f"{part}keys"), rtol=1e-6)
        np.testing.assert_allclose(found[1, op.layer] * steps, getattr(layer, f"{part}values"), rtol=1e-6)
    with pytest.raises(ConfigError, match="ranges of 1 layers, for a model of"):
        Ranges("x", 1, ranges.layers[:1]).scales(KVFormat(fmt), program)


def test_a_file_is_found_in_the_cache_or_where_it_is_said_to_be(checkpoint: Checkpoint, home: Path) -> None:
    program = build_program(read_config(checkpoint))
    fmt = KVFormat.INT8_STATIC
    with pytest.raises(ConfigError, match=r"none for this model: run `trimaran calibrate .*model` once"):
        scales_for(fmt, checkpoint, program, None)
    ranges = measure_ranges(checkpoint, [tokens(checkpoint)])
    write_ranges(default_path(checkpoint.sampled), ranges)
    (found,) = scales_for(fmt, checkpoint, program, None)
    assert found.digest == ranges.scales(fmt, program)[0].digest
    assert scales_for(KVFormat.INT8, checkpoint, program, None) == ()
    with pytest.raises(ConfigError, match="kv_cache_scales: int8 pages have scales of their own"):
        scales_for(KVFormat.INT8, checkpoint, program, "scales.json")


def test_ranges_after_another_transform_are_refused(checkpoint: Checkpoint) -> None:
    """As files from before wide heads had one of their own hold them."""
    program = build_program(read_config(checkpoint))
    ranges = measure_ranges(checkpoint, [tokens(checkpoint)])
    other = msgspec.structs.replace(
        ranges, layers=[msgspec.structs.replace(each, together=4) for each in ranges.layers]
    )
    assert other.scales(KVFormat.FP8_STATIC, program)[0].digest == ranges.scales(KVFormat.FP8_STATIC, program)[0].digest
    with pytest.raises(
        ConfigError, match=r"transforms of 4 dimensions, which are \d+ now: run `trimaran calibrate` again"
    ):
        other.scales(KVFormat.INT8_STATIC, program)


def test_a_file_of_another_model_or_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    write_ranges(path, Ranges("abc", 7, []))
    assert json.loads(path.read_text())["tokens"] == 7
    assert read_ranges(path, "abc") == Ranges("abc", 7, [])
    with pytest.raises(ConfigError, match="made for another model"):
        read_ranges(path, "abd")
    for text in ("", "[]", '{"model": "abc"}', '{"model": "abc", "tokens": 1, "layers": [], "more": 1}'):
        path.write_text(text)
        with pytest.raises(ConfigError, match="holds no ranges of keys and values"):
            read_ranges(path, "abc")
    with pytest.raises(ConfigError, match="cannot read"):
        read_ranges(tmp_path / "nothing.json", "abc")
    with pytest.raises(ConfigError, match="cannot write"):
        write_ranges(path / "below" / "a file", Ranges("abc", 7, []))


def test_latents_have_no_static_format(tmp_path: Path) -> None:
    with open_checkpoint(write_checkpoint("deepseek_v3", tmp_path / "model")) as opened_one:
        text = golden("deepseek_v3")["tokens"].tolist()
        with pytest.raises(UnsupportedError, match="caches latents"):
            measure_ranges(opened_one, [text])


def with_stored(folder: Path, stored: dict[str, list[float]]) -> Path:
    """A checkpoint with more tensors, in fp32."""
    path = write_checkpoint("qwen3", folder)
    more = [(TensorSpec(name, "F32", (len(values),)), np.array(values, np.float32)) for name, values in stored.items()]
    write_safetensors(
        path / "model.safetensors", [*((spec, tensor("qwen3", spec)) for spec in tensor_specs("qwen3")), *more]
    )
    return path


def test_scales_in_the_checkpoint_are_used_for_fp8(tmp_path: Path, home: Path) -> None:
    with open_checkpoint(write_checkpoint("qwen3", tmp_path / "plain")) as plain:
        cfg = read_config(plain)
        assert stored_scales(plain, build_program(cfg)) is None
    program = build_program(cfg)
    stored = {f"model.layers.{layer}.self_attn.k_scale": [0.5 + layer] for layer in range(cfg.layers)}
    stored |= {f"model.layers.{layer}.self_attn.v_scale": [0.25] * cfg.kv_heads for layer in range(cfg.layers)}
    with open_checkpoint(with_stored(tmp_path / "stored", stored)) as found:
        (scales,) = scales_for(KVFormat.FP8_STATIC, found, program, None)
        assert scales.groups[0] is not None
        assert scales.groups[0][:, 1].tolist() == [[1.5] * cfg.kv_heads, [0.25] * cfg.kv_heads]
        with pytest.raises(ConfigError, match="trimaran calibrate"):
            scales_for(KVFormat.INT8_STATIC, found, program, None)
        weights = load_weights(found, cfg, program, None)
        options = ExecutorOptions(kv_format=KVFormat.FP8_STATIC, kv_scales=(scales,), num_pages=4)
        open_executor("reference", program, weights, options).close()
    del stored["model.layers.0.self_attn.v_scale"]
    with (
        open_checkpoint(with_stored(tmp_path / "half", stored)) as half,
        pytest.raises(CheckpointError, match="of some layers only"),
    ):
        stored_scales(half, program)
