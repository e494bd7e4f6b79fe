"""GGUF metadata to ``ModelConfig``.

Source: the key list of ggml's ``docs/gguf.md`` and what llama.cpp's converter writes for the architecture ``llama``.
"""

from typing import Any

import numpy as np

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint import Checkpoint, StorageFormat
from trimaran.kernels.program import RopeSpec
from trimaran.models.config import ModelConfig
from trimaran.models.fields import Fields

ROPE_FACTORS = "rope_freqs.weight"  # a tensor, though it is configuration: what each rope frequency is divided by


def llama_from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    """The configuration of a GGUF file of architecture ``llama``.

    Raises ``CheckpointError`` on a missing or malformed key, ``UnsupportedError`` on one that would change the result
    in a way that the family does not implement; both name the key.
    """
    names = frozenset(checkpoint.names)
    prefix = "llama."
    own = Fields({k: v for k, v in checkpoint.metadata.items() if k.startswith(prefix)}, "the GGUF file")
    heads = own.integer(prefix + "attention.head_count")
    hidden = own.integer(prefix + "embedding_length")
    head_dim = own.integer(prefix + "attention.key_length", hidden // max(heads, 1))
    _only(own.integer(prefix + "attention.value_length", head_dim), head_dim, prefix + "attention.value_length")
    rope_dims = own.integer(prefix + "rope.dimension_count", head_dim)
    _only(rope_dims, head_dim, prefix + "rope.dimension_count")
    _only(own.text(prefix + "rope.scaling.type", "none"), "none", prefix + "rope.scaling.type")
    _only(own.integer(prefix + "expert_count", 0), 0, prefix + "expert_count")
    _only(own.integer(prefix + "expert_used_count", 0), 0, prefix + "expert_used_count")
    theta = own.number(prefix + "rope.freq_base", 10000.0)
    tokenizer = Fields(checkpoint.metadata, "the GGUF file")
    config = ModelConfig(
        family="llama",
        vocab=own.integer(prefix + "vocab_size", _tokens(checkpoint.metadata.get("tokenizer.ggml.tokens"))),
        hidden=hidden,
        intermediate=own.integer(prefix + "feed_forward_length"),
        layers=own.integer(prefix + "block_count"),
        heads=heads,
        kv_heads=own.integer(prefix + "attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=own.number(prefix + "attention.layer_norm_rms_epsilon"),
        rope=RopeSpec(theta, rope_dims, factors=_rope_factors(checkpoint, rope_dims // 2)),
        context=own.integer(prefix + "context_length"),
        tied="output.weight" not in names,
        attention_bias="blk.0.attn_q.bias" in names,
        bos_id=tokenizer.optional_integer("tokenizer.ggml.bos_token_id"),
        eos_ids=tokenizer.token_ids("tokenizer.ggml.eos_token_id")
        | tokenizer.token_ids("tokenizer.ggml.eot_token_id")
        | tokenizer.token_ids("tokenizer.ggml.eom_token_id"),
    )
    if unread := own.unread():
        raise UnsupportedError(f"the GGUF file sets {', '.join(unread)}, which the llama family does not implement")
    return config


def _only(value: Any, allowed: Any, key: str) -> None:
    if value != allowed:
        raise UnsupportedError(f"the GGUF file sets {key} to {value!r}; the llama family implements only {allowed!r}")


def _tokens(vocabulary: Any) -> int | None:
    """How many tokens the tokenizer has; ``None`` without one."""
    return len(vocabulary) if isinstance(vocabulary, list) and vocabulary else None


def _rope_factors(checkpoint: Checkpoint, count: int) -> tuple[float, ...] | None:
    for tensor in checkpoint.tensors():
        if tensor.name == ROPE_FACTORS:
            if tensor.fmt is not StorageFormat.F32:
                raise CheckpointError(f"{ROPE_FACTORS} must hold positive F32 numbers, not {tensor.fmt}")
            factors = np.frombuffer(tensor.data.tobytes(), dtype="<f4")
            if not np.all((factors > 0) & np.isfinite(factors)):
                raise CheckpointError(f"{ROPE_FACTORS} must hold positive F32 numbers")
            if len(factors) != count:
                raise CheckpointError(f"{ROPE_FACTORS} holds {len(factors)} factors, not {count}")
            return tuple(factors.tolist())
    return None
