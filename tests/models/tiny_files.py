"""The committed tiny Llamas, as they are, rewritten as GGUF, and taken apart in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from trimaran.checkpoint import Checkpoint, CheckpointTensor, open_checkpoint
from trimaran.kernels.rope import inverse_frequencies
from trimaran.models.config import ModelConfig
from trimaran.models.registry import read_config
from trimaran.quant.gguf_blocks import dequantise

TINY = Path(__file__).resolve().parent.parent / "data" / "tiny_llama"
NAMES = ("llama3", "biased")
F32 = gguf.GGMLQuantizationType.F32


@dataclass
class InMemory:
    """What loading needs of a ``Checkpoint``, open to changes."""

    kind: str
    metadata: dict[str, Any]
    directory: Path
    content: dict[str, CheckpointTensor]

    @property
    def names(self) -> list[str]:
        return list(self.content)

    def tensors(self) -> Iterator[CheckpointTensor]:
        yield from self.content.values()

    def read(self, path: Path) -> bytes:
        return path.read_bytes()


def in_memory(checkpoint: Checkpoint) -> InMemory:
    content = {tensor.name: tensor for tensor in checkpoint.tensors()}
    return InMemory(checkpoint.kind, dict(checkpoint.metadata), checkpoint.directory, content)


def open_tiny(name: str) -> InMemory:
    with open_checkpoint(TINY / name) as checkpoint:
        return in_memory(checkpoint)


def write_gguf(name: str, path: Path, kind: gguf.GGMLQuantizationType = F32) -> InMemory:
    """The tiny Llama ``name`` as llama.cpp's converter writes it, matrices in ``kind``."""
    source = open_tiny(name)
    cfg = read_config(source)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(cfg.layers)
    writer.add_context_length(cfg.context)
    writer.add_embedding_length(cfg.hidden)
    writer.add_feed_forward_length(cfg.intermediate)
    writer.add_head_count(cfg.heads)
    writer.add_head_count_kv(cfg.kv_heads)
    writer.add_key_length(cfg.head_dim)
    writer.add_value_length(cfg.head_dim)
    writer.add_layer_norm_rms_eps(cfg.norm_eps)
    writer.add_rope_freq_base(cfg.rope.theta)
    writer.add_rope_dimension_count(cfg.head_dim)
    writer.add_vocab_size(cfg.vocab)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if cfg.rope.scaling is not None:
        plain = cfg.rope.theta ** (-np.arange(0, cfg.head_dim, 2) / cfg.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / inverse_frequencies(cfg.rope)).astype(np.float32))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, cfg.layers)
    for tensor in source.tensors():
        values = permute(tensor.name, dequantise(tensor), cfg)
        matrix = tensor.name.endswith("weight") and values.ndim == 2
        new = names.get_name(tensor.name, try_suffixes=(".weight", ".bias"))
        assert new is not None
        if matrix and kind is not F32:
            writer.add_tensor(new, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(new, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_checkpoint(path) as checkpoint:
        return in_memory(checkpoint)


def permute(name: str, values: np.ndarray, cfg: ModelConfig) -> np.ndarray:
    """What ``LlamaModel.permute`` of llama.cpp's converter does to q and k."""
    heads = cfg.heads if "q_proj" in name else cfg.kv_heads if "k_proj" in name else 0
    if not heads:
        return values
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
