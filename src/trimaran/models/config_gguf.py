"""GGUF metadata to ``ModelConfig``: what all architectures share, and what each adds.

Source: the key list of ggml's ``docs/gguf.md``, what llama.cpp's converter writes, and what its ``src/models/`` take
for granted where a file says nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from trimaran.base.errors import UnsupportedError
from trimaran.checkpoint import Checkpoint
from trimaran.kernels.program import QueryScale
from trimaran.models.config import ExpertsConfig, IndexerConfig, LatentConfig, ModelConfig
from trimaran.models.fields import Fields
from trimaran.models.rope_gguf import latent_scale, read_local_rope, read_rope

_WHERE = "the GGUF file"


def config_from_gguf(checkpoint: Checkpoint, architecture: str) -> ModelConfig:
    """The configuration of a GGUF file of an architecture in ``READERS``.

    Raises ``CheckpointError`` on a missing or malformed key, ``UnsupportedError`` on one that would change the result
    in a way that the family does not implement; both name the key.
    """
    family, read = READERS[architecture]
    names = frozenset(checkpoint.names)
    own = Fields(checkpoint.metadata, _WHERE, f"{architecture}.")
    values = _common(own, checkpoint) | read(own, names)
    values.setdefault("rope", read_rope(own, checkpoint, values["head_dim"]))
    config = ModelConfig(family=family, **values)
    if unread := own.unread():
        raise UnsupportedError(f"{_WHERE} sets {', '.join(unread)}, which the {family} family does not implement")
    return config


def _common(own: Fields, checkpoint: Checkpoint) -> dict[str, Any]:
    names = frozenset(checkpoint.names)
    heads = own.integer("attention.head_count")
    tokenizer = Fields(checkpoint.metadata, _WHERE, "tokenizer.ggml.")
    return {
        "vocab": own.integer("vocab_size", _tokens(checkpoint.metadata.get("tokenizer.ggml.tokens"))),
        "hidden": own.integer("embedding_length"),
        "intermediate": own.integer("feed_forward_length"),
        "layers": len(own.layers("block_count")),
        "heads": heads,
        "kv_heads": own.integer("attention.head_count_kv", heads),
        "head_dim": _head_dim(own),
        "norm_eps": own.number("attention.layer_norm_rms_epsilon"),
        "context": own.integer("context_length"),
        "tied": "output.weight" not in names,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "qk_norm": "blk.0.attn_q_norm.weight" in names,
        "bos_id": tokenizer.optional_integer("bos_token_id"),
        "eos_ids": frozenset().union(*(tokenizer.token_ids(f"{end}_token_id") for end in ("eos", "eot", "eom"))),
    }


def _head_dim(own: Fields) -> int:
    width = own.integer("embedding_length") // max(own.integer("attention.head_count"), 1)
    return own.integer("attention.key_length", width)


def _grouped(own: Fields, _names: frozenset[str]) -> dict[str, Any]:
    """Grouped-query attention: keys and values are equally wide."""
    head_dim = _head_dim(own)
    _only(own, "attention.value_length", head_dim, own.integer("attention.value_length", head_dim))
    return {}


def _llama(own: Fields, names: frozenset[str]) -> dict[str, Any]:
    head_dim = _head_dim(own)
    _only(own, "rope.dimension_count", head_dim, own.integer("rope.dimension_count", head_dim))
    _only(own, "rope.scaling.type", "none", own.text("rope.scaling.type", "none"))  # factors are in a tensor
    for key in ("expert_count", "expert_used_count"):
        _only(own, key, 0, own.integer(key, 0))
    return _grouped(own, names)


def _mistral3(own: Fields, names: frozenset[str]) -> dict[str, Any]:
    values = _grouped(own, names)
    if beta := own.number("attention.temperature_scale", 0.0):
        values["query_scale"] = QueryScale(beta, own.integer("rope.scaling.original_context_length"))
    return values


def _gemma3(own: Fields, names: frozenset[str]) -> dict[str, Any]:
    layers = own.layers("block_count")
    values = _grouped(own, names)
    if len(layers) == 62:  # the largest model alone does not scale by the width of a head
        values["scale"] = max(own.count("embedding_length") // own.count("attention.head_count"), 1) ** -0.5
    local, pattern = read_local_rope(own, _head_dim(own)), own.count("attention.sliding_window_pattern", 6)
    if window := own.integer("attention.sliding_window", 0):
        values["window"] = window
        values["windowed"] = frozenset(i for i in layers if (i + 1) % pattern)
        values["local_rope"] = local
    return values


def _experts(own: Fields, *, scoring: Literal["softmax", "sigmoid"], normalise: bool, epsilon: float) -> ExpertsConfig:
    """``scoring`` and ``normalise`` are what holds where the file says nothing."""
    width = own.integer("expert_feed_forward_length")
    gating, dense = own.integer("expert_gating_func", 0), own.integer("leading_dense_block_count", 0)
    if not 0 <= gating <= 2:
        raise UnsupportedError(
            f"{_WHERE} sets expert_gating_func to {gating}; implemented are softmax (1), sigmoid (2)"
        )
    return ExpertsConfig(
        experts=own.integer("expert_count"),
        top_k=own.integer("expert_used_count"),
        width=width,
        shared_width=own.integer("expert_shared_count", 0) * width,
        dense=frozenset(i for i in own.layers("block_count") if i < dense),
        scoring=(scoring, "softmax", "sigmoid")[gating],
        groups=own.integer("expert_group_count", 1),
        top_groups=own.integer("expert_group_used_count", 1),
        normalise=own.flag("expert_weights_norm", normalise),
        epsilon=epsilon,
        factor=own.number("expert_weights_scale", 1.0),
    )


def _qwen3moe(own: Fields, names: frozenset[str]) -> dict[str, Any]:
    return _grouped(own, names) | {"experts": _experts(own, scoring="softmax", normalise=True, epsilon=0.0)}


def _minimax_m2(own: Fields, names: frozenset[str]) -> dict[str, Any]:
    return _grouped(own, names) | {"experts": _experts(own, scoring="sigmoid", normalise=True, epsilon=0.0)}


def _without_predictors(own: Fields) -> dict[str, Any]:
    """Layers that predict further tokens are counted among the blocks."""
    further = own.integer("nextn_predict_layers", 0)
    return {"layers": len(own.layers("block_count")) - further, "mtp_layers": further}


def _glm4moe(own: Fields, names: frozenset[str]) -> dict[str, Any]:
    experts = _experts(own, scoring="sigmoid", normalise=False, epsilon=1e-20)
    return _grouped(own, names) | _without_predictors(own) | {"experts": experts}


def _deepseek(own: Fields, names: frozenset[str]) -> dict[str, Any]:
    """Latent attention; the file says how wide a latent is where others say it of a head."""
    width, rank = own.count("attention.key_length_mla"), own.integer("attention.kv_lora_rank")
    nope = width - own.integer("rope.dimension_count")
    _only(own, "attention.head_count_kv", 1, own.integer("attention.head_count_kv", 1))
    _only(own, "attention.value_length", rank, own.integer("attention.value_length", rank))
    sigmoid = any(name.endswith("exp_probs_b.bias") for name in names)
    return _without_predictors(own) | {
        "kv_heads": own.integer("attention.head_count"),
        "head_dim": width,
        "scale": width**-0.5 * latent_scale(own),
        "latent": LatentConfig(
            own.integer("attention.q_lora_rank"), rank, nope, own.integer("attention.value_length_mla")
        ),
        "experts": _experts(own, scoring="sigmoid" if sigmoid else "softmax", normalise=False, epsilon=1e-20),
    }


def _with_indexer(own: Fields, names: frozenset[str], *, interleaved: bool) -> dict[str, Any]:
    values = _deepseek(own, names)
    indexer = IndexerConfig(
        heads=own.integer("attention.indexer.head_count"),
        dim=own.integer("attention.indexer.key_length"),
        top_k=own.integer("attention.indexer.top_k"),
        layers=_indexed(own, names, values["layers"]),
        interleaved=interleaved,
    )
    return values | {"indexer": indexer}


def _indexed(own: Fields, names: frozenset[str], layers: int) -> frozenset[int]:
    """The layers whose indexer is used: those that the file lists, else those that have one."""
    listed = own.flags("attention.indexer.types")
    return frozenset(
        i for i in range(layers) if (listed[i] if i < len(listed) else f"blk.{i}.indexer.proj.weight" in names)
    )


def _deepseek32(own: Fields, names: frozenset[str]) -> dict[str, Any]:
    return _with_indexer(own, names, interleaved=False)


def _glm_dsa(own: Fields, names: frozenset[str]) -> dict[str, Any]:
    return _with_indexer(own, names, interleaved=True)


READERS: Mapping[str, tuple[str, Callable[[Fields, frozenset[str]], dict[str, Any]]]] = {
    "llama": ("llama", _llama),  # general.architecture: the family, and what reads it
    "mistral3": ("ministral3", _mistral3),
    "qwen2": ("qwen2", _grouped),
    "qwen3": ("qwen3", _grouped),
    "qwen3moe": ("qwen3_moe", _qwen3moe),
    "gemma3": ("gemma3_text", _gemma3),
    "glm4moe": ("glm4_moe", _glm4moe),
    "minimax-m2": ("minimax_m2", _minimax_m2),
    "deepseek2": ("deepseek_v3", _deepseek),  # DeepSeek-V3, Kimi-K2, GLM-4.7-Flash
    "deepseek32": ("deepseek_v32", _deepseek32),
    "glm-dsa": ("glm_moe_dsa", _glm_dsa),
}


def _only(own: Fields, key: str, allowed: Any, value: Any) -> None:
    if value != allowed:
        raise UnsupportedError(f"{_WHERE} sets {own.prefix}{key} to {value!r}; only {allowed!r} is implemented")


def _tokens(vocabulary: Any) -> int | None:
    """How many tokens the tokenizer has; ``None`` without one."""
    return len(vocabulary) if isinstance(vocabulary, list) and vocabulary else None
