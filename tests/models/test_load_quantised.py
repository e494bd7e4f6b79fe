"""A model whose projections are stored as vendors' tools store them loads like one that is stored plainly."""

import logging
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.quant.stored_files import tensor, words

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.kernels.weights import Weight
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config

from .tiny_files import InMemory, open_tiny

RNG = np.random.default_rng(0)
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Leaves = dict[str, np.ndarray]


def fp8(rows: int, cols: int) -> tuple[Leaves, np.ndarray]:
    weight, scale = RNG.standard_normal((rows, cols)).astype(E4M3), np.full((1, 1), 0.25, np.float32)
    return {"weight": weight, "weight_scale_inv": scale}, weight.astype(np.float32) / 4


def packed(rows: int, cols: int) -> tuple[Leaves, np.ndarray]:
    codes, scale = RNG.integers(0, 16, (rows, cols)), np.full((rows, cols // 32), 0.125, BF16)
    shape = np.array([rows, cols], np.int32)
    leaves = {"weight_packed": words(codes, 4), "weight_scale": scale, "weight_shape": shape}
    return leaves, (codes - 8) * np.float32(0.125)


def gptq(rows: int, cols: int) -> tuple[Leaves, np.ndarray]:
    codes, scales = RNG.integers(0, 16, (rows, cols)), np.full((1, rows), 0.125, np.float16)
    leaves = {"qweight": words(codes, 4).T, "qzeros": words(np.full((1, rows), 4), 4), "scales": scales}
    leaves |= {"g_idx": np.zeros(cols, np.int32), "bias": np.zeros(rows, np.float16)}
    return leaves, (codes - 5) * np.float32(0.125)


def awq(rows: int, cols: int) -> tuple[Leaves, np.ndarray]:
    codes, scales = RNG.integers(0, 16, (cols, rows)), np.full((2, rows), 0.125, np.float16)
    shuffled = codes.reshape(cols, -1, 8)[:, :, AWQ_ORDER].reshape(cols, rows)
    return {"qweight": words(shuffled, 4), "qzeros": words(np.full((2, rows), 5), 4), "scales": scales}, (
        codes.T - 5
    ) * np.float32(0.125)


METHODS: dict[str, tuple[Any, dict[str, Any], WeightFormat]] = {
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}, WeightFormat.INT8),
    "packed": (packed, {"quant_method": "compressed-tensors", "format": "pack-quantized"}, WeightFormat.INT4),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "desc_act": False}, WeightFormat.INT4Z),
    "awq": (awq, {"quant_method": "awq", "version": "gemm"}, WeightFormat.INT4Z),
}


def quantised(method: str) -> tuple[InMemory, dict[str, np.ndarray]]:
    """The tiny model with other projections, stored as ``method`` does, and their numbers."""
    make, config, _ = METHODS[method]
    checkpoint, numbers = open_tiny("llama3"), {}
    checkpoint.metadata["quantization_config"] = config
    for name in [name for name in checkpoint.content if "_proj.weight" in name]:
        module = name.removesuffix(".weight")
        leaves, numbers[name] = make(*checkpoint.content.pop(name).shape)
        checkpoint.content |= {f"{module}.{leaf}": tensor(f"{module}.{leaf}", array) for leaf, array in leaves.items()}
        scale = tensor(f"{module}.input_scale", np.ones((), np.float32))
        checkpoint.content[scale.name] = scale
    return checkpoint, numbers


def load(checkpoint: InMemory, weight_format: WeightFormat | None = None) -> dict[str, Weight]:
    cfg = read_config(checkpoint)
    return load_weights(checkpoint, cfg, build_program(cfg), weight_format)


@pytest.mark.parametrize("method", METHODS)
def test_every_projection_is_placed(method: str, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint, numbers = quantised(method)
    with caplog.at_level(logging.INFO):
        weights = load(checkpoint, WeightFormat.FP32)
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        qkv = [numbers[f"{prefix}.self_attn.{part}_proj.weight"] for part in "qkv"]
        np.testing.assert_array_equal(weights[f"{prefix}.self_attn.qkv"].data, np.concatenate(qkv))
        np.testing.assert_array_equal(
            weights[f"{prefix}.mlp.down_proj"].data, numbers[f"{prefix}.mlp.down_proj.weight"]
        )
    assert any(message.startswith("skipped scales of activations and caches (14):") for message in caplog.messages)
    assert load(checkpoint)["model.layers.0.self_attn.qkv"].fmt is METHODS[method][2]


def test_a_scale_that_is_missing_is_named() -> None:
    checkpoint, _ = quantised("packed")
    del checkpoint.content["model.layers.1.mlp.up_proj.weight_scale"]
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight_scale"):
        load(checkpoint)


def test_a_method_that_is_not_read_is_named() -> None:
    checkpoint, _ = quantised("fp8")
    checkpoint.metadata["quantization_config"] = {"quant_method": "bitsandbytes"}
    with pytest.raises(UnsupportedError, match="quantised by 'bitsandbytes'; readable are fp8"):
        load(checkpoint)
