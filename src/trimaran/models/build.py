"""Programs of families; a family's module is imported when a model needs it."""

from importlib import import_module

from trimaran.kernels.program import Program
from trimaran.models.config import ModelConfig

FAMILIES = {  # ModelConfig.family: a module with build(cfg) -> Program
    "llama": "trimaran.models.llama",
    "mistral": "trimaran.models.llama",
    "ministral3": "trimaran.models.llama",
    "qwen2": "trimaran.models.qwen2",
    "qwen3": "trimaran.models.llama",
    "gemma3_text": "trimaran.models.gemma3",
    "qwen3_moe": "trimaran.models.experts",
    "glm4_moe": "trimaran.models.experts",
    "minimax_m2": "trimaran.models.experts",
    "deepseek_v3": "trimaran.models.deepseek_v3",
    "kimi_k2": "trimaran.models.deepseek_v3",
    "glm4_moe_lite": "trimaran.models.deepseek_v3",
    "deepseek_v32": "trimaran.models.deepseek_v32",
    "glm_moe_dsa": "trimaran.models.deepseek_v32",
    "bert": "trimaran.models.bert",
}


def build_program(cfg: ModelConfig) -> Program:
    """The program of ``cfg``'s family."""
    program = import_module(FAMILIES[cfg.family]).build(cfg)
    assert isinstance(program, Program)
    return program
