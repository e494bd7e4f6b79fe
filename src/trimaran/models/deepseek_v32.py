"""DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose attention reads the tokens that an indexer chooses.

V3.2 and GLM-5 have an indexer in every layer; in GLM-5.2 most layers use the choice of one before them. Source:
``DeepseekV32ForCausalLM`` and ``GlmMoeDsaForCausalLM`` of transformers.
"""

from trimaran.kernels.program import Program
from trimaran.models.config import ModelConfig
from trimaran.models.experts import decoder_with_experts
from trimaran.models.latent import sparse_attention


def build(cfg: ModelConfig) -> Program:
    """The family's program."""
    return decoder_with_experts(cfg, sparse_attention())
