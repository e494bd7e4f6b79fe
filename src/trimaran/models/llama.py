"""Llama (1, 2, 3, 3.1, 3.2) and the models built like it: SmolLM2, TinyLlama, Mistral without a sliding window.

Grouped-query attention with rotary embedding, SwiGLU, RMS norm before each block. Source: ``LlamaForCausalLM`` of
transformers.
"""

from trimaran.kernels.program import Program
from trimaran.models.builder import Builder
from trimaran.models.config import ModelConfig


def build(cfg: ModelConfig) -> Program:
    """The family's program. Projections that read the same input are fused: q, k and v; gate and up."""
    b = Builder(cfg)
    x = b.embed("model.embed_tokens")
    for i in range(cfg.layers):
        with b.layer(i) as w:
            h = b.rms_norm(x, w["input_layernorm"])
            qkv = b.linear(h, w["self_attn.qkv"], cfg.q_width + 2 * cfg.kv_width, bias=cfg.attention_bias, wide=True)
            x = b.add(x, b.linear(b.attention(qkv), w["self_attn.o_proj"], cfg.hidden, bias=cfg.attention_bias))
            h = b.rms_norm(x, w["post_attention_layernorm"])
            gate_up = b.linear(h, w["mlp.gate_up"], 2 * cfg.intermediate)
            x = b.add(x, b.linear(b.glu(gate_up), w["mlp.down_proj"], cfg.hidden))
    x = b.rms_norm(b.take_rows(x), "model.norm")
    b.logits(b.linear(x, "lm_head", cfg.vocab))
    return b.finish()
