"""Llama (1, 2, 3, 3.1, 3.2) and the families that differ from it by their configuration alone: SmolLM2 and TinyLlama,
Mistral (a window in all layers), Ministral 3 and Devstral 2 (queries scaled by position), Qwen3 (norms of queries and
keys).

Source: ``LlamaForCausalLM``, ``MistralForCausalLM``, ``Ministral3ForCausalLM``, ``Qwen3ForCausalLM`` of transformers.
"""

from functools import partial

from trimaran.kernels.program import Program
from trimaran.models.blocks import attention, decoder, feed_forward
from trimaran.models.config import ModelConfig


def build(cfg: ModelConfig) -> Program:
    """The family's program."""
    return decoder(cfg, partial(attention, output_bias=True), feed_forward)
