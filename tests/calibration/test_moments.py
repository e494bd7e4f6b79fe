"""Squares of inputs: of the tensors' own inputs, and of experts those of the tokens that go through them."""

from pathlib import Path

import numpy as np
from tests.models.families import float_tensors, golden, write_checkpoint

from trimaran.calibration.moments import Squares, input_squares
from trimaran.checkpoint import open_checkpoint

EPS = 0.003  # as config.json says


def squares(name: str, folder: Path) -> dict[tuple[str, int], Squares]:
    with open_checkpoint(write_checkpoint(name, folder)) as checkpoint:
        return input_squares(checkpoint, [golden(name)["tokens"].tolist()])


def test_the_first_layer_reads_normed_embeddings(tmp_path: Path) -> None:
    found, tensors = squares("qwen3", tmp_path), float_tensors("qwen3")
    x = tensors["model.embed_tokens.weight"][golden("qwen3")["tokens"]].astype(np.float64)
    x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + EPS)
    x *= tensors["model.layers.0.input_layernorm.weight"]
    for projection in "qkv":
        one = found[f"model.layers.0.self_attn.{projection}_proj.weight", 0]
        assert one.rows == len(x)
        np.testing.assert_allclose(one.mean, np.square(x).mean(axis=0), rtol=1e-4)
    matrices = {name for name, values in tensors.items() if values.ndim == 2 and ".layers." in name}
    assert {name for name, _ in found} == matrices


def test_experts_see_what_is_routed_to_them_and_latents_have_a_matrix(tmp_path: Path) -> None:
    found = squares("deepseek_v3", tmp_path)
    tokens = len(golden("deepseek_v3")["tokens"])
    routed = [one.rows for (name, _), one in found.items() if ".layers.1.mlp.experts." in name and "down_proj" in name]
    gate = found["model.layers.1.mlp.gate.weight", 0]
    assert gate.rows == tokens
    assert sum(routed) == tokens * 3
    assert max(routed) < tokens
    latents = found["model.layers.0.self_attn.kv_b_proj.weight", 0]
    assert latents.rows == tokens
    assert np.mean(latents.mean) > 0
