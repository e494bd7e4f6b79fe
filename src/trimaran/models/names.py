"""Where a program's weights come from: each is one tensor of the checkpoint, or several stacked by rows.

Programs name weights as Hugging Face files do, except for those that are made of several tensors: ``self_attn.qkv``,
``mlp.gate_up`` and so on. The tables below list these, and everything that a vendor or GGUF calls differently.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimaran.checkpoint.checkpoint import Kind
from trimaran.models.config import LatentConfig, ModelConfig


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows of each of ``heads`` heads, in another order or not all of them.

    A head has ``of`` rows in the tensor; those in ``taken`` are its rows in the program. ``transposed``: what is taken
    of a head is turned, so that the tensor's columns become the program's rows.
    """

    heads: int
    of: int
    taken: tuple[int, ...]
    transposed: bool = False


def half_split(heads: int, dim: int, first: int = 0, rotated: int | None = None) -> HeadRows:
    """Heads of ``dim`` rows whose ``rotated`` rows from ``first`` on (by default all) lie in interleaved order.

    Interleaved rope pairs rows (2i, 2i + 1) of a head where a program pairs (i, i + rotated/2). Putting them in order
    moves whole rows, hence works on quantised ones.
    """
    end = dim if rotated is None else first + rotated
    return HeadRows(heads, dim, (*range(first), *range(first, end, 2), *range(first + 1, end, 2), *range(end, dim)))


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a weight that are one tensor in the checkpoint, or some of its rows.

    ``pieces`` > 0: the tensor is ``[pieces, rows, columns]``, and these rows are its piece number ``piece``.
    ``less_one``: the tensor holds a norm's weight less 1.
    """

    tensor: str
    rows: int
    head_rows: HeadRows | None = None
    piece: int = 0
    pieces: int = 0
    less_one: bool = False

    def shape(self, columns: tuple[int, ...]) -> tuple[int, ...]:
        """The tensor's shape; ``columns`` is empty for a vector."""
        if self.head_rows is not None:
            each = self.head_rows
            return (each.heads * each.of, *((self.rows // each.heads,) if each.transposed else columns))
        rows = (self.rows, *columns)
        return (self.pieces, *rows) if self.pieces else rows

    def row_order(self) -> npt.NDArray[np.intp] | slice:
        """Where the part's rows lie in the tensor, its pieces one under the other."""
        if self.head_rows is None:
            return slice(self.piece * self.rows, (self.piece + 1) * self.rows)
        starts = np.arange(self.head_rows.heads)[:, None] * self.head_rows.of
        order: npt.NDArray[np.intp] = starts + np.array(self.head_rows.taken)
        return order.ravel()


def text_name(tensor: str) -> str:
    """A tensor's name without what a multimodal checkpoint puts before the names of its language model."""
    return tensor.removeprefix("language_model.").removeprefix("bert.")


def weight_parts(weight: str, rows: int, cfg: ModelConfig, kind: Kind) -> tuple[Part, ...]:
    """The parts, in row order, of the program's ``weight`` that has ``rows`` rows (values, for a vector)."""
    gguf = kind == "gguf"
    name, suffix = (weight.removesuffix(".bias"), ".bias") if weight.endswith(".bias") else (weight, ".weight")
    if match := _LAYER.fullmatch(name):
        layers = "blk" if gguf else _HF_LAYERS.get(cfg.family, "model.layers")
        prefix, inner = f"{layers}.{match['layer']}.", match["name"]
        table = _GGUF_LAYER | _GGUF_FAMILY.get(cfg.family, {}) if gguf else _HF_LAYER | _HF_FAMILY.get(cfg.family, {})
        tensors = table[inner] if gguf else table.get(inner, (inner,))
    else:
        prefix, inner = "", name
        tensors = _GGUF[name] if gguf else (name,)
    if inner in _EXPERTS:
        assert cfg.experts is not None, weight
        count, each = cfg.experts.experts, rows // cfg.experts.experts // len(tensors)
        if gguf:
            return _pieces([f"{prefix}{tensor}{suffix}" for tensor in tensors], count, each)
        return tuple(Part(f"{prefix}{tensor.format(e)}{suffix}", each) for e in range(count) for tensor in tensors)
    if gguf and inner in _UP:
        return _pieces([f"{prefix}{tensors[0]}{suffix}"], cfg.heads, rows // cfg.heads)
    names = [f"{prefix}{tensor}" if tensor.endswith(_BARE) else f"{prefix}{tensor}{suffix}" for tensor in tensors]
    if inner == "self_attn.qkv":
        interleaved = gguf and cfg.family in _GGUF_INTERLEAVES
        q, k, v = names
        return (
            Part(q, cfg.q_width, half_split(cfg.heads, cfg.head_dim) if interleaved else None),
            Part(k, cfg.kv_width, half_split(cfg.kv_heads, cfg.head_dim) if interleaved else None),
            Part(v, cfg.kv_width),
        )
    if cfg.latent is not None and inner in _LATENT:
        return (_latent_part(inner, names[0], rows, cfg, cfg.latent),)
    less_one = not gguf and cfg.family in _HF_LESS_ONE and inner.endswith("norm")
    return tuple(Part(tensor, rows // len(names), less_one=less_one) for tensor in names)


def _pieces(tensors: Sequence[str], count: int, rows: int) -> tuple[Part, ...]:
    """The pieces of tensors ``[count, rows, columns]``: the first of each, then the second of each, and so on."""
    return tuple(Part(tensor, rows, piece=i, pieces=count) for i in range(count) for tensor in tensors)


def _latent_part(inner: str, tensor: str, rows: int, cfg: ModelConfig, latent: LatentConfig) -> Part:
    """The weights of latent attention and its indexer that are not their tensor as it is."""
    rotated, indexer = cfg.rope.dims, cfg.indexer
    match inner:
        case "self_attn.q_b_proj":
            return Part(tensor, rows, half_split(cfg.heads, cfg.head_dim, latent.nope))
        case "self_attn.kv_a_proj_with_mqa":
            return Part(tensor, rows, half_split(1, rows, latent.rank))
        case "self_attn.k_up":
            of = latent.nope + latent.value
            return Part(tensor, rows, HeadRows(cfg.heads, of, (*range(latent.nope),), transposed=True))
        case "self_attn.v_up":
            of = latent.nope + latent.value
            return Part(tensor, rows, HeadRows(cfg.heads, of, (*range(latent.nope, of),)))
    if indexer is None or not indexer.interleaved:
        return Part(tensor, rows)
    return Part(tensor, rows, half_split(rows // indexer.dim, indexer.dim, rotated=rotated))


_LAYER = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<name>.+)")
_BARE = ("e_score_correction_bias", "exp_probs_b.bias")  # tensors whose names end here
_EXPERTS = frozenset({"mlp.experts.gate_up", "mlp.experts.down_proj"})  # all experts' matrices, one under the other
_UP = frozenset({"self_attn.k_up", "self_attn.v_up"})  # a matrix for each head
_LATENT = frozenset(
    {
        "self_attn.q_b_proj",
        "self_attn.kv_a_proj_with_mqa",
        "self_attn.k_up",
        "self_attn.v_up",
        "self_attn.indexer.wq_b",
        "self_attn.indexer.wk",
        "self_attn.indexer.k_norm",
    }
)
_GGUF_INTERLEAVES = frozenset({"llama", "ministral3"})  # families whose q and k rows llama.cpp's converter permutes
_HF_LESS_ONE = frozenset({"gemma3_text"})  # families whose norms start at 0 when they are trained

_Table = dict[str, tuple[str, ...]]
_HF_LAYER: _Table = {
    "self_attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.k_up": ("self_attn.kv_b_proj",),
    "self_attn.v_up": ("self_attn.kv_b_proj",),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.shared_experts.gate_up": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    "mlp.experts.gate_up": ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),  # {}: the expert's number
    "mlp.experts.down_proj": ("mlp.experts.{}.down_proj",),
}
_HF_LAYERS = {"bert": "encoder.layer"}  # families whose layers are not called model.layers
_HF_FAMILY: Mapping[str, _Table] = {
    "bert": {
        "self_attn.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "self_attn.o_proj": ("attention.output.dense",),
        "post_attention_layernorm": ("attention.output.LayerNorm",),
        "mlp.up_proj": ("intermediate.dense",),
        "mlp.down_proj": ("output.dense",),
        "post_layernorm": ("output.LayerNorm",),
    },
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
    "mlp.gate": ("ffn_gate_inp",),
    "mlp.gate.e_score_correction_bias": ("exp_probs_b.bias",),
    "mlp.experts.gate_up": ("ffn_gate_exps", "ffn_up_exps"),
    "mlp.experts.down_proj": ("ffn_down_exps",),
    "mlp.shared_experts.gate_up": ("ffn_gate_shexp", "ffn_up_shexp"),
    "mlp.shared_experts.down_proj": ("ffn_down_shexp",),
    "self_attn.q_a_proj": ("attn_q_a",),
    "self_attn.q_a_layernorm": ("attn_q_a_norm",),
    "self_attn.q_b_proj": ("attn_q_b",),
    "self_attn.kv_a_proj_with_mqa": ("attn_kv_a_mqa",),
    "self_attn.kv_a_layernorm": ("attn_kv_a_norm",),
    "self_attn.k_up": ("attn_k_b",),
    "self_attn.v_up": ("attn_v_b",),
    "self_attn.indexer.wq_b": ("indexer.attn_q_b",),
    "self_attn.indexer.wk": ("indexer.attn_k",),
    "self_attn.indexer.k_norm": ("indexer.k_norm",),
    "self_attn.indexer.weights_proj": ("indexer.proj",),
}
_GGUF_FAMILY: Mapping[str, _Table] = {
    "gemma3_text": {
        "post_attention_layernorm": ("post_attention_norm",),
        "pre_feedforward_layernorm": ("ffn_norm",),
        "post_feedforward_layernorm": ("post_ffw_norm",),
    },
    "glm4_moe": {"post_attention_layernorm": ("post_attention_norm",)},
}
