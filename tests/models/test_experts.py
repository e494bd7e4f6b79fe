"""The part of a layer after attention: which ops and weights it has, and where they come from."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trimaran.base.errors import CheckpointError
from trimaran.base.formats import WeightFormat
from trimaran.checkpoint import CheckpointTensor, StorageFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.program import Add, Experts, Glu, Linear, Program, RmsNorm, Route
from trimaran.kernels.weights import Weight
from trimaran.models.builder import Builder
from trimaran.models.config import ExpertsConfig, ModelConfig
from trimaran.models.experts import add_experts
from trimaran.models.load import load_weights

from .test_builder import CFG
from .tiny_files import InMemory

EXPERTS = ExpertsConfig(3, 2, 32, shared_width=0, dense=frozenset({0}), scoring="softmax", epsilon=0.25, factor=2.0)
MIXTURE = replace(CFG, intermediate=64, layers=2, experts=EXPERTS, mtp_layers=1)


def build(cfg: ModelConfig) -> Program:
    b = Builder(cfg)
    x = b.embed("model.embed_tokens")
    for i in range(cfg.layers):
        with b.layer(i) as w:
            x = add_experts(b, w, x)
    b.logits(b.linear(b.take_rows(x), "lm_head", cfg.vocab))
    return b.finish()


def of_layer(program: Program, layer: int) -> dict[str, tuple[int, ...]]:
    prefix = f"model.layers.{layer}."
    return {name.removeprefix(prefix): spec.shape for name, spec in program.weights.items() if name.startswith(prefix)}


def test_a_dense_layer_among_layers_with_experts() -> None:
    program = build(MIXTURE)
    assert [type(op) for op in program.ops[1:10]] == [
        RmsNorm, Linear, Glu, Linear, Add, RmsNorm, Linear, Route, Experts,
    ]  # fmt: skip
    assert of_layer(program, 0) == {
        "post_attention_layernorm": (32,),
        "mlp.gate_up": (128, 32),
        "mlp.down_proj": (32, 64),
    }
    assert of_layer(program, 1) == {
        "post_attention_layernorm": (32,),
        "mlp.gate": (3, 32),
        "mlp.experts.gate_up": (3 * 64, 32),
        "mlp.experts.down_proj": (3 * 32, 32),
    }


def test_the_router_is_configured_by_the_model() -> None:
    route = next(op for op in build(MIXTURE).ops if isinstance(op, Route))
    assert (route.top_k, route.scoring, route.bias, route.epsilon, route.factor) == (2, "softmax", None, 0.25, 2.0)
    scored = replace(MIXTURE, experts=replace(EXPERTS, scoring="sigmoid", groups=1, shared_width=64))
    program = build(scored)
    route = next(op for op in program.ops if isinstance(op, Route))
    assert route.bias == "model.layers.1.mlp.gate.e_score_correction_bias"
    assert of_layer(program, 1) == {
        "post_attention_layernorm": (32,),
        "mlp.shared_experts.gate_up": (128, 32),
        "mlp.shared_experts.down_proj": (32, 64),
        "mlp.gate": (3, 32),
        "mlp.gate.e_score_correction_bias": (3,),
        "mlp.experts.gate_up": (3 * 64, 32),
        "mlp.experts.down_proj": (3 * 32, 32),
    }


def checkpoint(prefix: str = "") -> InMemory:
    """The tensors of ``build(MIXTURE)`` as transformers stores them, bf16."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (50, 32), "lm_head": (50, 32)}
    for layer in range(2):
        shapes[f"model.layers.{layer}.post_attention_layernorm"] = (32,)
    shapes |= {f"model.layers.0.mlp.{name}_proj": (64, 32) for name in ("gate", "up")}
    shapes |= {"model.layers.0.mlp.down_proj": (32, 64), "model.layers.1.mlp.gate": (3, 32)}
    for expert in range(3):
        shapes |= {f"model.layers.1.mlp.experts.{expert}.{name}_proj": (32, 32) for name in ("down", "gate", "up")}
    rng = np.random.default_rng(0)
    content = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16
        data = values.astype("<u2").view(np.uint8).reshape(-1, 2 * shape[-1])
        full = f"{prefix}{name}.weight"
        content[full] = CheckpointTensor(full, shape, StorageFormat.BF16, data)
    return InMemory("safetensors", {}, Path(), content)


def load(source: InMemory, fmt: WeightFormat | None = None) -> dict[str, Weight]:
    return load_weights(source, MIXTURE, build(MIXTURE), fmt)  # type: ignore[arg-type]  # a stand-in


def test_experts_lie_one_under_the_other_gate_before_up() -> None:
    source = checkpoint()
    weights = load(source)
    for expert in range(3):
        for place, name in enumerate(("gate", "up")):
            tensor = source.content[f"model.layers.1.mlp.experts.{expert}.{name}_proj.weight"]
            rows = weights["model.layers.1.mlp.experts.gate_up"].data[(2 * expert + place) * 32 :][:32]
            np.testing.assert_array_equal(rows.view(np.uint8), tensor.data)


@pytest.mark.parametrize("fmt", [None, *WeightFormat])
def test_the_router_is_never_rounded(fmt: WeightFormat | None) -> None:
    source = checkpoint()
    weights = load(source, fmt)
    router = weights["model.layers.1.mlp.gate"]
    assert router.fmt is WeightFormat.FP32
    bits = source.content["model.layers.1.mlp.gate.weight"].data.view("<u2").astype(np.uint32) << 16
    np.testing.assert_array_equal(dequantise(router).view(np.uint32), bits)
    assert weights["model.layers.1.mlp.experts.down_proj"].fmt is (fmt or WeightFormat.BF16)


def test_what_a_text_model_does_not_read_is_skipped_with_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    source = checkpoint("language_model.")
    norm = source.content["language_model.model.layers.1.post_attention_layernorm.weight"]
    extra = ["language_model.model.layers.2.enorm.weight", "language_model.model.layers.2.mlp.gate.weight"]
    extra += ["vision_tower.ln_pre.weight", "mm_projector.linear_1.weight", "multi_modal_projector.norm.weight"]
    source.content |= {name: replace(norm, name=name) for name in extra}
    with caplog.at_level(logging.INFO):
        load(source)
    assert caplog.messages == [
        "skipped parts that see images (3): mm_projector.linear_1.weight and 2 more",
        "skipped layers that predict further tokens (2): model.layers.2.enorm.weight and 1 more",
    ]


def test_a_layer_behind_those_that_predict_further_tokens_is_unknown() -> None:
    source = checkpoint()
    norm = source.content["model.layers.1.post_attention_layernorm.weight"]
    source.content["model.layers.3.enorm.weight"] = replace(norm, name="model.layers.3.enorm.weight")
    with pytest.raises(CheckpointError, match=r"does not know: model\.layers\.3\.enorm\.weight"):
        load(source)
