"""DeepSeek-V3, Kimi-K2 and GLM-4.7-Flash: latent attention, then experts in all but the first layers.

Source: ``DeepseekV3ForCausalLM`` and ``Glm4MoeLiteForCausalLM`` of transformers.
"""

from trimaran.kernels.program import Program
from trimaran.models.blocks import Block, with_logits
from trimaran.models.builder import Builder
from trimaran.models.config import ModelConfig
from trimaran.models.feed_forward import feed_forward
from trimaran.models.latent import latent_attention


def build(cfg: ModelConfig) -> Program:
    """The family's program."""
    return latent_decoder(cfg, latent_attention())


def latent_decoder(cfg: ModelConfig, attention: Block) -> Program:
    b = Builder(cfg)
    x = b.embed("model.embed_tokens")
    for i in range(cfg.layers):
        with b.layer(i) as w:
            x = b.add(x, attention(b, w, b.rms_norm(x, w["input_layernorm"])))
            x = feed_forward(b, cfg, w, i, x)
    return with_logits(b, x)
