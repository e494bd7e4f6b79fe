"""What follows attention in a layer: a dense SwiGLU, or a router with its experts and what all tokens share."""

from trimaran.base.formats import WeightFormat
from trimaran.kernels.program import Buffer
from trimaran.models.builder import Builder, LayerNames
from trimaran.models.config import ExpertsConfig, ModelConfig


def feed_forward(b: Builder, cfg: ModelConfig, w: LayerNames, layer: int, x: Buffer) -> Buffer:
    """``x`` plus what layer number ``layer`` makes of its norm ``post_attention_layernorm``."""
    h = b.rms_norm(x, w["post_attention_layernorm"])
    if cfg.experts is None or layer in cfg.experts.dense:
        return b.add(x, _swiglu(b, w, "mlp", h, cfg.intermediate))
    if cfg.experts.shared_width:
        x = b.add(x, _swiglu(b, w, "mlp.shared_experts", h, cfg.experts.shared_width))
    return b.add(x, _experts(b, cfg.experts, w, h))


def _swiglu(b: Builder, w: LayerNames, name: str, h: Buffer, width: int) -> Buffer:
    gate_up = b.linear(h, w[f"{name}.gate_up"], 2 * width)
    return b.linear(b.glu(gate_up), w[f"{name}.down_proj"], h.width)


def _experts(b: Builder, experts: ExpertsConfig, w: LayerNames, h: Buffer) -> Buffer:
    """The router's matrix stays fp32: rounding would move tokens to other experts."""
    logits = b.linear(h, w["mlp.gate"], experts.experts, least=WeightFormat.FP32)
    bias = w["mlp.gate.e_score_correction_bias"] if experts.scoring == "sigmoid" else None
    routes = b.route(logits, experts, bias)
    return b.experts(h, routes, w["mlp.experts.gate_up"], w["mlp.experts.down_proj"], experts)
