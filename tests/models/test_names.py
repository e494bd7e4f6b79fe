"""Program weights to tensor names, and the row order of GGUF's q and k."""

from dataclasses import replace

import numpy as np
import pytest

from trimaran.models.config import ExpertsConfig, IndexerConfig, LatentConfig, ModelConfig
from trimaran.models.names import Part, half_split, text_name, weight_parts

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
    assert v.row_order() == slice(0, 16)
    for part, name in ((q, "q_proj"), (k, "k_proj")):
        order = part.row_order()
        np.testing.assert_array_equal(permute(name, np.arange(part.rows), CFG)[order], np.arange(part.rows))
    for part in weight_parts("model.layers.0.self_attn.qkv", 64, CFG, "safetensors"):
        assert part.row_order() == slice(0, part.rows)


def test_row_order_by_hand() -> None:
    order = Part("q", 8, half_split(2, 4)).row_order()
    assert isinstance(order, np.ndarray)
    assert order.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_weight_that_no_checkpoint_has() -> None:
    with pytest.raises(KeyError):
        weight_parts("model.layers.0.mlp.router", 64, CFG, "gguf")


EXPERTS = ExpertsConfig(3, 2, 16, shared_width=0, dense=frozenset(), scoring="sigmoid")
MIXTURE = replace(CFG, experts=EXPERTS)


def test_experts_of_transformers_are_a_tensor_each() -> None:
    parts = weight_parts("model.layers.2.mlp.experts.gate_up", 3 * 32, MIXTURE, "safetensors")
    names = [f"model.layers.2.mlp.experts.{e}.{matrix}_proj.weight" for e in range(3) for matrix in ("gate", "up")]
    assert parts == tuple(Part(name, 16) for name in names)


def test_experts_of_minimax() -> None:
    cfg = replace(MIXTURE, family="minimax_m2")
    prefix = "model.layers.0.block_sparse_moe."
    weight = "model.layers.0.mlp."
    parts = weight_parts(f"{weight}experts.gate_up", 3 * 32, cfg, "safetensors")
    assert [part.tensor for part in parts[:3]] == [f"{prefix}experts.{e}.weight" for e in ("0.w1", "0.w3", "1.w1")]
    assert weight_parts(f"{weight}gate", 3, cfg, "safetensors") == (Part(f"{prefix}gate.weight", 3),)
    bias = weight_parts(f"{weight}gate.e_score_correction_bias", 3, cfg, "safetensors")
    assert bias == (Part(f"{prefix}e_score_correction_bias", 3),)


def test_a_part_of_a_tensor_in_pieces() -> None:
    part = Part("experts", 16, piece=2, pieces=3)
    assert part.shape((64,)) == (3, 16, 64)
    assert part.row_order() == slice(32, 48)


def test_what_a_multimodal_checkpoint_puts_before_names() -> None:
    assert text_name("language_model.model.norm.weight") == text_name("model.norm.weight") == "model.norm.weight"


LATENT = replace(
    CFG, kv_heads=4, head_dim=12, latent=LatentConfig(8, 6, nope=8, value=5), rope=replace(CFG.rope, dims=4)
)


def order(weight: str, rows: int, cfg: ModelConfig) -> list[int]:
    (part,) = weight_parts(f"model.layers.0.self_attn.{weight}", rows, cfg, "safetensors")
    rows_of = part.row_order()
    return np.arange(np.prod(part.shape(()))).astype(int)[rows_of].tolist()


def test_interleaved_parts_of_latent_attention_are_put_in_halves() -> None:
    q_b = order("q_b_proj", 48, LATENT)
    assert q_b[:12] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 9, 11]
    assert q_b[12:24] == [12 + i for i in q_b[:12]]
    assert order("kv_a_proj_with_mqa", 10, LATENT) == [0, 1, 2, 3, 4, 5, 6, 8, 7, 9]


def test_kv_b_is_cut_into_two_matrices_of_each_head() -> None:
    keys, values = (
        weight_parts(f"model.layers.0.self_attn.{name}", rows, LATENT, "safetensors")[0]
        for name, rows in (("k_up", 4 * 6), ("v_up", 4 * 5))
    )
    assert (keys.tensor, values.tensor) == ("model.layers.0.self_attn.kv_b_proj.weight",) * 2
    assert keys.shape((8,)) == values.shape((6,)) == (4 * 13, 6)
    assert isinstance(values.row_order(), np.ndarray)
    assert [*keys.row_order()[:8], *values.row_order()[:5]] == list(range(13))
    assert values.row_order()[5] == 13 + 8


def test_the_indexer_is_interleaved_in_glm_alone() -> None:
    indexer = IndexerConfig(heads=2, dim=6, top_k=3, layers=frozenset({0}), interleaved=True)
    glm, deepseek = (replace(LATENT, indexer=replace(indexer, interleaved=inter)) for inter in (True, False))
    for weight in ("wk", "k_norm", "k_norm.bias"):
        assert order(f"indexer.{weight}", 6, glm) == [0, 2, 1, 3, 4, 5]
    assert order("indexer.wq_b", 12, glm) == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
    for weight, rows in (("wk", 6), ("k_norm", 6), ("wq_b", 12)):
        assert order(f"indexer.{weight}", rows, deepseek) == list(range(rows))
