"""Architectures by their vendors' names; a family's module is imported when a model needs it."""

from pathlib import Path

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint import Checkpoint
from trimaran.checkpoint.json_file import read_object
from trimaran.models.build import FAMILIES as FAMILIES
from trimaran.models.build import build_program as build_program
from trimaran.models.config import ModelConfig
from trimaran.models.config_gguf import READERS as GGUF
from trimaran.models.config_gguf import config_from_gguf
from trimaran.models.config_hf import config_from_hf

HF = {  # architectures[0]: the model type whose configuration it has; None: its text_config says
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Ministral3ForCausalLM": "ministral3",
    "Mistral3ForConditionalGeneration": None,
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": None,
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "KimiK25ForConditionalGeneration": None,
    "Glm4MoeForCausalLM": "glm4_moe",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "BertModel": "bert",
    "BertForSequenceClassification": "bert",
}


def read_config(checkpoint: Checkpoint) -> ModelConfig:
    """The checkpoint's configuration; raises ``UnsupportedError`` on an architecture that no family implements.

    Raises ``CheckpointError`` on a configuration that its tensors cannot fill.
    """
    cfg = _parse(checkpoint)
    tensors = len(checkpoint.names)
    if cfg.layers > tensors:  # a program of so many layers is not even begun
        raise CheckpointError(f"the model says it has {cfg.layers} layers, but its files hold only {tensors} tensors")
    return cfg


def read_config_file(path: Path) -> ModelConfig:
    """The configuration in a ``config.json`` that lies by itself; raises as ``read_config`` does."""
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist")
    values, _ = read_object(path)
    return _parse(Checkpoint("safetensors", path, values, b"", [], []))


def _parse(checkpoint: Checkpoint) -> ModelConfig:
    name = _architecture(checkpoint)
    known = GGUF if checkpoint.kind == "gguf" else HF
    if name not in known:
        raise UnsupportedError(f"architecture {name!r} is not supported; supported are {', '.join(known)}")
    cfg = config_from_gguf(checkpoint, name) if checkpoint.kind == "gguf" else config_from_hf(checkpoint, HF[name])
    if cfg.family not in FAMILIES:
        raise UnsupportedError(f"the family {cfg.family} is not supported yet")
    return cfg


def _architecture(checkpoint: Checkpoint) -> str:
    if checkpoint.kind == "gguf":
        key = "general.architecture"
        name = checkpoint.metadata.get(key)
    else:
        key = "architectures"
        names = checkpoint.metadata.get(key) or [None]
        name = names[0] if isinstance(names, list) else names
    if not isinstance(name, str):
        raise CheckpointError(f"the model does not say its architecture ({key})")
    return name
