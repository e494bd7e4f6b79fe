"""Program weights to tensor names, and the row order of GGUF's q and k."""

import numpy as np
import pytest

from trimaran.models.names import Part, weight_parts

from .test_builder import CFG
from .tiny_files import permute


def tensors(weight: str, kind: str) -> list[str]:
    return [part.tensor for part in weight_parts(weight, 64, CFG, kind)]


def test_names_of_transformers() -> None:
    assert tensors("model.embed_tokens", "safetensors") == ["model.embed_tokens.weight"]
    assert tensors("model.layers.11.self_attn.qkv.bias", "safetensors") == [
        "model.layers.11.self_attn.q_proj.bias",
        "model.layers.11.self_attn.k_proj.bias",
        "model.layers.11.self_attn.v_proj.bias",
    ]
    assert tensors("model.layers.0.mlp.gate_up", "safetensors") == [
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    ]


def test_names_of_gguf() -> None:
    assert tensors("lm_head", "gguf") == ["output.weight"]
    assert tensors("model.norm", "gguf") == ["output_norm.weight"]
    assert tensors("model.layers.11.post_attention_layernorm", "gguf") == ["blk.11.ffn_norm.weight"]
    assert tensors("model.layers.11.self_attn.qkv", "gguf") == [
        "blk.11.attn_q.weight",
        "blk.11.attn_k.weight",
        "blk.11.attn_v.weight",
    ]


def test_rows_of_fused_weights() -> None:
    assert [part.rows for part in weight_parts("model.layers.0.self_attn.qkv", 64, CFG, "gguf")] == [32, 16, 16]
    assert [part.rows for part in weight_parts("model.layers.0.mlp.gate_up", 96, CFG, "gguf")] == [48, 48]


def test_only_q_and_k_of_gguf_change_their_rows() -> None:
    q, k, v = weight_parts("model.layers.0.self_attn.qkv", 64, CFG, "gguf")
    assert v.row_order() is None
    for part, name in ((q, "q_proj"), (k, "k_proj")):
        order = part.row_order()
        assert order is not None
        np.testing.assert_array_equal(permute(name, np.arange(part.rows), CFG)[order], np.arange(part.rows))
    assert all(
        part.row_order() is None for part in weight_parts("model.layers.0.self_attn.qkv", 64, CFG, "safetensors")
    )


def test_row_order_by_hand() -> None:
    order = Part("q", 8, interleaved_heads=2).row_order()
    assert order is not None
    assert order.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_weight_that_no_checkpoint_has() -> None:
    with pytest.raises(KeyError):
        weight_parts("model.layers.0.mlp.router", 64, CFG, "gguf")
