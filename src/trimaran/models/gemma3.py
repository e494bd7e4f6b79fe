"""Gemma 3 (text): embeddings times sqrt(hidden), norms before and after each block, GeGLU, and most layers see a window
of tokens with a rope of their own.

A few dimensions are so much larger than the others that 7 bits are too few for what shares a scale with them: all
activations keep 15 (``python bench/parity.py gemma3-270m``). The embedding's factor is not rounded to bf16, which
transformers does in bf16 runs alone and llama.cpp never. Source: ``Gemma3ForCausalLM`` of transformers.
"""

import math

from trimaran.kernels.program import Program
from trimaran.models.blocks import attention, feed_forward, with_logits
from trimaran.models.builder import Builder
from trimaran.models.config import ModelConfig


def build(cfg: ModelConfig) -> Program:
    """The family's program."""
    b = Builder(cfg)
    x = b.embed("model.embed_tokens", math.sqrt(cfg.hidden))
    for i in range(cfg.layers):
        with b.layer(i) as w:
            h = attention(b, w, b.rms_norm(x, w["input_layernorm"]), wide=True)
            x = b.add(x, b.rms_norm(h, w["post_attention_layernorm"]))
            h = b.rms_norm(x, w["pre_feedforward_layernorm"])
            h = feed_forward(b, w, h, activation="gelu_tanh", wide=True)
            x = b.add(x, b.rms_norm(h, w["post_feedforward_layernorm"]))
    return with_logits(b, x)
