"""Families with a mixture of experts: Qwen3-MoE, GLM-4.5 to 4.7 and MiniMax-M2, and the parts that DeepSeek's share.

Source: ``Qwen3MoeForCausalLM``, ``Glm4MoeForCausalLM`` and ``MiniMaxM2ForCausalLM`` of transformers.
"""

from collections.abc import Mapping
from functools import partial

from trimaran.base.formats import WeightFormat
from trimaran.kernels.program import Buffer, Program
from trimaran.models.blocks import Block, attention, feed_forward, with_logits
from trimaran.models.builder import Builder, LayerNames
from trimaran.models.config import ExpertsConfig, ModelConfig

_ATTENTION: Mapping[str, Block] = {
    "qwen3_moe": partial(attention, output_bias=True),
    "glm4_moe": attention,
    "minimax_m2": partial(attention, whole_norm=True),
}


def build(cfg: ModelConfig) -> Program:
    """The family's program."""
    return decoder_with_experts(cfg, _ATTENTION[cfg.family])


def decoder_with_experts(cfg: ModelConfig, attention: Block) -> Program:
    """Layers of attention and experts behind the embedding; in the layers that ``cfg.experts`` says, a dense block."""
    b = Builder(cfg)
    x = b.embed("model.embed_tokens")
    for i in range(cfg.layers):
        with b.layer(i) as w:
            x = b.add(x, attention(b, w, b.rms_norm(x, w["input_layernorm"])))
            x = add_experts(b, w, x)
    return with_logits(b, x)


def add_experts(b: Builder, w: LayerNames, x: Buffer) -> Buffer:
    """``x`` plus what the experts, or the dense block, of this layer make of its norm."""
    experts = b.cfg.experts
    h = b.rms_norm(x, w["post_attention_layernorm"])
    if experts is None or w.index in experts.dense:
        return b.add(x, feed_forward(b, w, h))
    if experts.shared_width:
        x = b.add(x, feed_forward(b, w, h, name="mlp.shared_experts", width=experts.shared_width))
    return b.add(x, _routed(b, experts, w, h))


def _routed(b: Builder, experts: ExpertsConfig, w: LayerNames, h: Buffer) -> Buffer:
    """The router's matrix stays fp32: rounding it would send tokens to other experts."""
    logits = b.linear(h, w["mlp.gate"], experts.experts, least=WeightFormat.FP32)
    bias = w["mlp.gate.e_score_correction_bias"] if experts.scoring == "sigmoid" else None
    routes = b.route(logits, experts, bias)
    return b.experts(h, routes, w["mlp.experts.gate_up"], w["mlp.experts.down_proj"], experts)
