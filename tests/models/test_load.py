"""Loading places every tensor and names what does not fit."""

import logging
from dataclasses import replace
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.checkpoint import CheckpointTensor, StorageFormat, open_checkpoint
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.weights import Weight
from trimaran.models.load import WeightReader, load_weights
from trimaran.models.registry import build_program, read_config
from trimaran.quant.gguf_blocks import dequantise as dequantise_tensor

from .families import write_checkpoint
from .tiny_files import InMemory, open_tiny, write_gguf

UP = "model.layers.1.mlp.up_proj.weight"
QKV = "model.layers.0.self_attn.qkv"


def load(checkpoint: InMemory, weight_format: WeightFormat | None = None) -> dict[str, Weight]:
    cfg = read_config(checkpoint)
    return load_weights(checkpoint, cfg, build_program(cfg), weight_format)


def values(checkpoint: InMemory, *names: str) -> np.ndarray:
    return np.concatenate([dequantise_tensor(checkpoint.content[name]) for name in names])


def test_every_weight_of_the_program_is_there() -> None:
    checkpoint = open_tiny("llama3")
    cfg = read_config(checkpoint)
    program = build_program(cfg)
    weights = load_weights(checkpoint, cfg, program, None)
    assert {name: weight.shape for name, weight in weights.items()} == {
        name: spec.shape for name, spec in program.weights.items()
    }
    assert all(weight.name == name for name, weight in weights.items())


def test_projections_of_one_input_are_stacked() -> None:
    checkpoint = open_tiny("llama3")
    weights = load(checkpoint)
    prefix = "model.layers.1."
    qkv = [f"{prefix}self_attn.{part}_proj.weight" for part in "qkv"]
    np.testing.assert_array_equal(dequantise(weights[f"{prefix}self_attn.qkv"]), values(checkpoint, *qkv))
    gate_up = [f"{prefix}mlp.gate_proj.weight", UP]
    np.testing.assert_array_equal(dequantise(weights[f"{prefix}mlp.gate_up"]), values(checkpoint, *gate_up))


@pytest.mark.parametrize("weight_format", [None, WeightFormat.INT4, WeightFormat.CODEBOOK4])
def test_what_is_known_of_weights_before_they_are_read_is_true(weight_format: WeightFormat | None) -> None:
    checkpoint = open_tiny("biased")
    cfg = read_config(checkpoint)
    reader = WeightReader(checkpoint, cfg, build_program(cfg), weight_format)
    for name, known in reader.weights.items():
        read = reader.read(name)
        assert (known.name, known.fmt, known.shape) == (read.name, read.fmt, read.shape)
        assert (known.data.size > 0) == bool(known.fmt.levels)
    assert reader.weights["lm_head"] is reader.weights["model.embed_tokens"]


def test_a_tied_matrix_is_one_object() -> None:
    weights = load(open_tiny("biased"))
    assert weights["lm_head"] is weights["model.embed_tokens"]
    untied = load(open_tiny("llama3"))
    assert untied["lm_head"] is not untied["model.embed_tokens"]


@pytest.mark.parametrize("name", ["model.norm.weight", UP, "lm_head.weight"])
def test_a_missing_tensor_is_named(name: str) -> None:
    checkpoint = open_tiny("llama3")
    del checkpoint.content[name]
    with pytest.raises(CheckpointError, match=f"no tensor {name}, which the llama family needs"):
        load(checkpoint)


def test_many_missing_tensors_are_counted() -> None:
    checkpoint = open_tiny("llama3")
    checkpoint.content = {name: tensor for name, tensor in checkpoint.content.items() if ".1." not in name}
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.input_layernorm\.weight, .* and 4 more"):
        load(checkpoint)


def test_a_left_over_tensor_is_named() -> None:
    checkpoint = open_tiny("llama3")
    extra = replace(checkpoint.content[UP], name="model.layers.2.mlp.up_proj.weight")
    checkpoint.content[extra.name] = extra
    with pytest.raises(CheckpointError, match=r"does not know: model\.layers\.2\.mlp\.up_proj\.weight"):
        load(checkpoint)


def test_a_bias_that_the_config_does_not_announce_is_left_over() -> None:
    checkpoint = open_tiny("biased")
    checkpoint.metadata["attention_bias"] = False
    with pytest.raises(CheckpointError, match=r"does not know: .*self_attn\.k_proj\.bias"):
        load(checkpoint)


@pytest.mark.parametrize("shape", [(32, 64), (64, 32), (4096,)])
def test_a_misshapen_tensor_is_named(shape: tuple[int, ...]) -> None:
    checkpoint = open_tiny("llama3")
    checkpoint.content[UP] = replace(checkpoint.content[UP], shape=shape)
    with pytest.raises(CheckpointError, match=rf"{UP} has shape \[{shape[0]}.*ask for \[64, 64\]"):
        load(checkpoint)


def test_a_bias_of_zeros_adds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = open_tiny("llama3")
    name = "model.layers.0.self_attn.o_proj.bias"
    checkpoint.content[name] = CheckpointTensor(name, (64,), StorageFormat.F16, np.zeros((1, 128), np.uint8))
    with caplog.at_level(logging.INFO):
        load(checkpoint)
    assert caplog.messages == [f"skipped biases of zeros (1): {name}"]


def test_known_constants_are_skipped_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = open_tiny("biased")
    tensor = CheckpointTensor("x", (4,), StorageFormat.F32, np.zeros((1, 16), np.uint8))
    extra = ["model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"]
    checkpoint.content |= {name: replace(tensor, name=name) for name in extra}
    with caplog.at_level(logging.INFO):
        load(checkpoint)
    assert caplog.messages == [
        "skipped a second copy of the tied matrix (1): lm_head.weight",
        f"skipped rope constants that the configuration holds already (1): {extra[0]}",
    ]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_quantised_gguf_rows_are_put_back_in_order(kind: str, tmp_path: Path) -> None:
    plain, quant = open_tiny("llama3"), gguf.GGMLQuantizationType[kind]
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    expected = gguf.quants.dequantize(gguf.quants.quantize(values(plain, *names), quant), quant)
    weights = load(write_gguf("llama3", tmp_path / "tiny.gguf", quant))
    np.testing.assert_array_equal(dequantise(weights[QKV]), expected)
    assert weights[QKV].fmt == {"Q8_0": "int8", "Q4_0": "int4", "Q4_1": "int4z"}[kind]


@pytest.mark.parametrize("fmt", [WeightFormat.INT4, WeightFormat.FP8, WeightFormat.CODEBOOK3])
def test_vectors_stay_fp32_and_matrices_follow_the_request(fmt: WeightFormat) -> None:
    weights = load(open_tiny("biased"), fmt)
    assert weights["model.layers.0.self_attn.qkv.bias"].fmt is WeightFormat.FP32
    assert weights["model.norm"].fmt is WeightFormat.FP32
    assert weights[QKV].fmt is fmt
    assert weights["lm_head"].fmt is WeightFormat.INT8  # what is coarser would hurt the output matrix most


def mixed(tmp_path: Path, **formats: str) -> InMemory:
    """A GGUF file whose layer 0 has q, k and v in different formats."""
    files = {
        kind: write_gguf("llama3", tmp_path / f"{kind}.gguf", gguf.GGMLQuantizationType[kind])
        for kind in set(formats.values())
    }
    checkpoint = files[formats["q"]]
    for part, kind in formats.items():
        checkpoint.content[f"blk.0.attn_{part}.weight"] = files[kind].content[f"blk.0.attn_{part}.weight"]
    return checkpoint


@pytest.mark.parametrize(
    ("formats", "held"),
    [
        ({"q": "Q4_0", "k": "Q4_0", "v": "Q8_0"}, WeightFormat.INT8),
        ({"q": "Q4_0", "k": "Q4_1", "v": "Q4_0"}, WeightFormat.INT4Z),
        ({"q": "Q4_1", "k": "Q8_0", "v": "F32"}, WeightFormat.FP32),
    ],
)
def test_parts_in_different_grids_are_joined_without_loss(
    formats: dict[str, str], held: WeightFormat, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = mixed(tmp_path, **formats)
    weight = load(checkpoint)[QKV]
    assert weight.fmt is held
    np.testing.assert_array_equal(dequantise(weight)[-48:], values(checkpoint, "blk.0.attn_v.weight"))
    assert np.array_equal(
        np.sort(dequantise(weight)[:96], axis=0), np.sort(values(checkpoint, "blk.0.attn_q.weight"), axis=0)
    )
    assert not caplog.messages


def test_joining_that_rounds_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weight = load(mixed(tmp_path, q="Q4_1", k="Q8_0", v="Q8_0"))[QKV]
    assert weight.fmt is WeightFormat.INT8
    assert caplog.messages == ["blk.0.attn_q.weight is rounded from int4z to int8, the format of the tensors beside it"]
    caplog.clear()
    load(mixed(tmp_path, q="Q4_1", k="Q4_1", v="Q8_0"))
    assert caplog.messages == [
        "blk.0.attn_q.weight and 1 more are rounded from int4z to int8, the format of the tensors beside it"
    ]


def test_a_matrix_without_whole_groups_is_named() -> None:
    checkpoint = open_tiny("llama3")
    checkpoint.metadata["intermediate_size"] = 48
    for name, tensor in checkpoint.content.items():
        if "gate_proj" in name or "up_proj" in name:
            checkpoint.content[name] = replace(tensor, shape=(48, 64), data=tensor.data[:48])
        elif "down_proj" in name:
            checkpoint.content[name] = replace(tensor, shape=(64, 48), data=np.ascontiguousarray(tensor.data[:, :96]))
    assert load(checkpoint)["model.layers.0.mlp.down_proj"].shape == (64, 48)
    with pytest.raises(UnsupportedError, match=r"down_proj\.weight has 48 columns"):
        load(checkpoint, WeightFormat.INT8)


def test_a_quantised_matrix_is_placed_as_a_plain_one_would_be() -> None:
    checkpoint = open_tiny("llama3")
    module = UP.removesuffix(".weight")
    codes = np.random.default_rng(0).standard_normal((64, 64), np.float32).astype(ml_dtypes.float8_e4m3fn)
    checkpoint.metadata["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    checkpoint.content[UP] = CheckpointTensor(UP, (64, 64), StorageFormat.F8_E4M3, codes.view(np.uint8))
    scale = CheckpointTensor(
        f"{module}.weight_scale_inv", (1, 1), StorageFormat.F32, np.float32([[0.5]]).view(np.uint8)
    )
    checkpoint.content[scale.name] = scale
    weight = load(checkpoint, WeightFormat.FP32)["model.layers.1.mlp.gate_up"]
    np.testing.assert_array_equal(weight.data[64:], codes.astype(np.float32) * 0.5)
    del checkpoint.content[scale.name]
    with pytest.raises(CheckpointError, match=r"neither model\.layers\.1\.mlp\.up_proj\.weight_scale_inv nor"):
        load(checkpoint)


def test_a_billion_experts_are_refused_before_they_are_named(tmp_path: Path) -> None:
    folder = write_checkpoint("qwen3_moe", tmp_path)
    with open_checkpoint(folder) as checkpoint:
        checkpoint.metadata["num_experts"] = 1 << 30
        cfg = read_config(checkpoint)
        with pytest.raises(CheckpointError, match=r"ask for \d+ values of model\.layers\.0\.mlp\.experts\.gate_up"):
            load_weights(checkpoint, cfg, build_program(cfg), None)
