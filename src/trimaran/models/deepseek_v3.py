"""DeepSeek-V3, Kimi-K2 and GLM-4.7-Flash: latent attention, then experts in all but the first layers.

Source: ``DeepseekV3ForCausalLM`` and ``Glm4MoeLiteForCausalLM`` of transformers.
"""

from trimaran.kernels.program import Program
from trimaran.models.config import ModelConfig
from trimaran.models.experts import decoder_with_experts
from trimaran.models.latent import latent_attention


def build(cfg: ModelConfig) -> Program:
    """The family's program."""
    return decoder_with_experts(cfg, latent_attention)
