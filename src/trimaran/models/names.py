"""Where a program's weights come from: each is one tensor of the checkpoint, or several stacked by rows.

Programs name weights as Hugging Face files do, except for those that are made of several tensors: ``self_attn.qkv``,
``mlp.gate_up`` and so on. The tables below list these, and everything that a vendor or GGUF calls differently.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimaran.checkpoint.checkpoint import Kind
from trimaran.models.config import ModelConfig


@dataclass(frozen=True)
class Part:
    """Rows of a weight that are one tensor in the checkpoint.

    ``interleaved_heads`` > 0: the rows of each of so many heads lie in the order of interleaved rope.
    """

    tensor: str
    rows: int
    interleaved_heads: int = 0

    def row_order(self) -> npt.NDArray[np.intp] | None:
        """The tensor's rows in the order of the program, or ``None`` when they are in it.

        Interleaved rope pairs rows (2i, 2i + 1) of a head where a program pairs (i, i + dim/2). llama.cpp's converter
        permutes q and k so; undoing it moves whole rows, hence works on quantised ones.
        """
        if not self.interleaved_heads:
            return None
        pairs = self.rows // self.interleaved_heads // 2
        return np.arange(self.rows).reshape(self.interleaved_heads, pairs, 2).swapaxes(1, 2).ravel()


def weight_parts(weight: str, rows: int, cfg: ModelConfig, kind: Kind) -> tuple[Part, ...]:
    """The parts, in row order, of the program's ``weight`` that has ``rows`` rows (values, for a vector)."""
    name, bias = (weight.removesuffix(".bias"), "bias") if weight.endswith(".bias") else (weight, "weight")
    if match := _LAYER.fullmatch(name):
        prefix = f"blk.{match['layer']}." if kind == "gguf" else f"model.layers.{match['layer']}."
        inner = match["name"]
        tensors = _GGUF_LAYER[inner] if kind == "gguf" else _HF_LAYER.get(inner, (inner,))
    else:
        prefix, inner = "", name
        tensors = _GGUF[name] if kind == "gguf" else (name,)
    names = [f"{prefix}{tensor}.{bias}" for tensor in tensors]
    if inner == "self_attn.qkv":
        interleaved = kind == "gguf" and cfg.family in _GGUF_INTERLEAVES
        q, k, v = names
        return (
            Part(q, cfg.q_width, cfg.heads if interleaved else 0),
            Part(k, cfg.kv_width, cfg.kv_heads if interleaved else 0),
            Part(v, cfg.kv_width),
        )
    return tuple(Part(tensor, rows // len(names)) for tensor in names)


_LAYER = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<name>.+)")
_GGUF_INTERLEAVES = frozenset({"llama"})  # families whose q and k rows llama.cpp's converter permutes

_Table = Mapping[str, tuple[str, ...]]
_HF_LAYER: _Table = {
    "self_attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
}
_GGUF: _Table = {"model.embed_tokens": ("token_embd",), "model.norm": ("output_norm",), "lm_head": ("output",)}
_GGUF_LAYER: _Table = {
    "input_layernorm": ("attn_norm",),
    "self_attn.qkv": ("attn_q", "attn_k", "attn_v"),
    "self_attn.q_norm": ("attn_q_norm",),
    "self_attn.k_norm": ("attn_k_norm",),
    "self_attn.o_proj": ("attn_output",),
    "post_attention_layernorm": ("ffn_norm",),
    "mlp.gate_up": ("ffn_gate", "ffn_up"),
    "mlp.down_proj": ("ffn_down",),
}
