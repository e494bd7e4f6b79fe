"""What is compressed, by the names that vendors give."""

import pytest

from trimaran.compress.choice import DROPPED, why_kept

ROUTERS = "routers"
OUTSIDE = "embeddings, output matrix and all outside the layers"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model.layers.3.self_attn.q_proj.weight", None),
        ("language_model.model.layers.3.mlp.experts.17.down_proj.weight", None),
        ("model.layers.3.block_sparse_moe.experts.0.w1.weight", None),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", None),
        ("model.layers.3.mlp.gate_proj.weight", None),
        ("model.layers.3.mlp.gate.weight", ROUTERS),
        ("model.layers.3.mlp.shared_expert_gate.weight", ROUTERS),
        ("model.layers.3.block_sparse_moe.gate.weight", ROUTERS),
        ("model.layers.3.self_attn.indexer.wq_b.weight", "indexers, which choose what attention reads"),
        ("model.layers.61.eh_proj.weight", "what joins the layers that predict further tokens"),
        ("model.embed_tokens.weight", OUTSIDE),
        ("language_model.lm_head.weight", OUTSIDE),
        ("vision_tower.encoder.layers.2.mlp.fc1.weight", "parts that see images"),
        ("model.layers.3.self_attn.q_proj.input_scale", DROPPED),
    ],
)
def test_every_kind_of_matrix(name: str, reason: str | None) -> None:
    assert why_kept(name, (64, 64), experts_only=False) == reason


def test_experts_only_leaves_shared_experts() -> None:
    asked = "all but routed experts, as asked"
    assert why_kept("model.layers.3.mlp.experts.1.up_proj.weight", (64, 64), experts_only=True) is None
    assert why_kept("model.layers.3.mlp.shared_experts.up_proj.weight", (64, 64), experts_only=True) == asked
    assert why_kept("model.layers.3.self_attn.o_proj.weight", (64, 64), experts_only=True) == asked


def test_other_shapes_stay() -> None:
    assert why_kept("model.layers.3.self_attn.q_proj.bias", (64,), False) == "norms, biases and other vectors"
    assert why_kept("model.layers.3.mlp.experts.gate_up_proj", (8, 64, 64), False) == (
        "no matrices of one linear module"
    )
