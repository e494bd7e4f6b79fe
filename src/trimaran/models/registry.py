"""Architectures by their vendors' names; a family's module is imported when a model needs it."""

from importlib import import_module

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint import Checkpoint
from trimaran.kernels.program import Program
from trimaran.models.config import ModelConfig
from trimaran.models.config_gguf import llama_from_gguf
from trimaran.models.config_hf import llama_from_hf

GGUF = {"llama": llama_from_gguf}  # general.architecture
HF = {"LlamaForCausalLM": llama_from_hf}  # architectures[0]
FAMILIES = {"llama": "trimaran.models.llama"}  # ModelConfig.family: a module with build(cfg) -> Program


def read_config(checkpoint: Checkpoint) -> ModelConfig:
    """The checkpoint's configuration; raises ``UnsupportedError`` on an architecture that no family implements.

    Raises ``CheckpointError`` on a configuration that its tensors cannot fill.
    """
    if checkpoint.kind == "gguf":
        key, known = "general.architecture", GGUF
        name = checkpoint.metadata.get(key)
    else:
        key, known = "architectures", HF
        names = checkpoint.metadata.get(key) or [None]
        name = names[0] if isinstance(names, list) else names
    if not isinstance(name, str):
        raise CheckpointError(f"the model does not say its architecture ({key})")
    if name not in known:
        raise UnsupportedError(f"architecture {name!r} is not supported; supported are {', '.join(known)}")
    cfg = known[name](checkpoint)
    tensors = len(checkpoint.names)
    if cfg.layers > tensors:  # a program of so many layers is not even begun
        raise CheckpointError(f"the model says it has {cfg.layers} layers, but its files hold only {tensors} tensors")
    return cfg


def build_program(cfg: ModelConfig) -> Program:
    """The program of ``cfg``'s family."""
    program = import_module(FAMILIES[cfg.family]).build(cfg)
    assert isinstance(program, Program)
    return program
