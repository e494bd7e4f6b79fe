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


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a weight that are one tensor in the checkpoint.

    ``interleaved_heads`` > 0: the rows of each of so many heads lie in the order of interleaved rope. ``pieces`` > 0:
    the tensor is ``[pieces, rows, columns]``, and these rows are its piece number ``piece``. ``less_one``: the tensor
    holds a norm's weight less 1.
    """

    tensor: str
    rows: int
    interleaved_heads: int = 0
    piece: int = 0
    pieces: int = 0
    less_one: bool = False

    def shape(self, columns: tuple[int, ...]) -> tuple[int, ...]:
        """The tensor's shape; ``columns`` is empty for a vector."""
        rows = (self.rows, *columns)
        return (self.pieces, *rows) if self.pieces else rows

    def row_order(self) -> npt.NDArray[np.intp] | slice:
        """Where the part's rows lie in the tensor, its pieces one under the other.

        Interleaved rope pairs rows (2i, 2i + 1) of a head where a program pairs (i, i + dim/2). llama.cpp's converter
        permutes q and k so; undoing it moves whole rows, hence works on quantised ones.
        """
        if not self.interleaved_heads:
            return slice(self.piece * self.rows, (self.piece + 1) * self.rows)
        pairs = self.rows // self.interleaved_heads // 2
        return np.arange(self.rows).reshape(self.interleaved_heads, pairs, 2).swapaxes(1, 2).ravel()


def text_name(tensor: str) -> str:
    """A tensor's name without what a multimodal checkpoint puts before the names of its language model."""
    return tensor.removeprefix("language_model.")


def weight_parts(weight: str, rows: int, cfg: ModelConfig, kind: Kind) -> tuple[Part, ...]:
    """The parts, in row order, of the program's ``weight`` that has ``rows`` rows (values, for a vector)."""
    gguf = kind == "gguf"
    name, suffix = (weight.removesuffix(".bias"), ".bias") if weight.endswith(".bias") else (weight, ".weight")
    if match := _LAYER.fullmatch(name):
        prefix, inner = f"{'blk' if gguf else 'model.layers'}.{match['layer']}.", match["name"]
        table = _GGUF_LAYER | _GGUF_FAMILY.get(cfg.family, {}) if gguf else _HF_LAYER | _HF_FAMILY.get(cfg.family, {})
        tensors = table[inner] if gguf else table.get(inner, (inner,))
    else:
        prefix, inner = "", name
        tensors = _GGUF[name] if gguf else (name,)
    if inner in _EXPERTS:
        assert cfg.experts is not None, weight
        count, each = cfg.experts.experts, rows // cfg.experts.experts // len(tensors)
        placed = [(e, f"{prefix}{tensor.format(e)}{suffix}") for e in range(count) for tensor in tensors]
        if gguf:
            return tuple(Part(tensor, each, piece=e, pieces=count) for e, tensor in placed)
        return tuple(Part(tensor, each) for _, tensor in placed)
    names = [f"{prefix}{tensor}" if tensor.endswith(_BARE) else f"{prefix}{tensor}{suffix}" for tensor in tensors]
    if inner == "self_attn.qkv":
        interleaved = gguf and cfg.family in _GGUF_INTERLEAVES
        q, k, v = names
        return (
            Part(q, cfg.q_width, cfg.heads if interleaved else 0),
            Part(k, cfg.kv_width, cfg.kv_heads if interleaved else 0),
            Part(v, cfg.kv_width),
        )
    less_one = not gguf and cfg.family in _HF_LESS_ONE and inner.endswith("norm")
    return tuple(Part(tensor, rows // len(names), less_one=less_one) for tensor in names)


_LAYER = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<name>.+)")
_BARE = ("e_score_correction_bias",)  # tensors whose names end here
_EXPERTS = frozenset({"mlp.experts.gate_up", "mlp.experts.down_proj"})  # all experts' matrices, one under the other
_GGUF_INTERLEAVES = frozenset({"llama"})  # families whose q and k rows llama.cpp's converter permutes
_HF_LESS_ONE = frozenset({"gemma3_text"})  # families whose norms start at 0 when they are trained

_Table = dict[str, tuple[str, ...]]
_HF_LAYER: _Table = {
    "self_attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.shared_experts.gate_up": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    "mlp.experts.gate_up": ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),  # {}: the expert's number
    "mlp.experts.down_proj": ("mlp.experts.{}.down_proj",),
}
_HF_FAMILY: Mapping[str, _Table] = {
    "minimax_m2": {
        "mlp.gate": ("block_sparse_moe.gate",),
        "mlp.gate.e_score_correction_bias": ("block_sparse_moe.e_score_correction_bias",),
        "mlp.experts.gate_up": ("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
        "mlp.experts.down_proj": ("block_sparse_moe.experts.{}.w2",),
    },
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
_GGUF_FAMILY: Mapping[str, _Table] = {
    "gemma3_text": {
        "post_attention_layernorm": ("post_attention_norm",),
        "pre_feedforward_layernorm": ("ffn_norm",),
        "post_feedforward_layernorm": ("post_ffw_norm",),
    },
}
