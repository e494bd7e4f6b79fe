"""Qwen2 and Qwen2.5: Llama whose queries, keys and values have biases while the output projection has none.

Source: ``Qwen2ForCausalLM`` of transformers.
"""

from trimaran.kernels.program import Program
from trimaran.models.blocks import attention, decoder, feed_forward
from trimaran.models.config import ModelConfig


def build(cfg: ModelConfig) -> Program:
    """The family's program."""
    return decoder(cfg, attention, feed_forward)
