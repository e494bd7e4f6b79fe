"""A ``ModelConfig`` to the ``config.json`` that transformers reads: for models whose files say it in another way."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from trimaran.base.errors import TrimaranError, UnsupportedError
from trimaran.checkpoint import Checkpoint
from trimaran.kernels.program import LinearScaling, Llama3Scaling, RopeSpec, YarnScaling
from trimaran.kernels.rope import inverse_frequencies, rope_table
from trimaran.models.config import ModelConfig
from trimaran.models.config_hf import config_from_hf

Values = dict[str, Any]


def config_json(cfg: ModelConfig) -> Values:
    """The file's content; reading it gives ``cfg`` again, which is checked.

    Raises ``UnsupportedError`` on a family, or a number, that is not written.
    """
    if cfg.family not in _FAMILIES:
        raise UnsupportedError(
            f"no config.json is written for the {cfg.family} family, only for {', '.join(_FAMILIES)}"
        )
    architecture, own = _FAMILIES[cfg.family]
    values: Values = {
        "architectures": [architecture],
        "model_type": cfg.family,
        "vocab_size": cfg.vocab,
        "hidden_size": cfg.hidden,
        "intermediate_size": cfg.intermediate,
        "num_hidden_layers": cfg.layers,
        "num_attention_heads": cfg.heads,
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.head_dim,
        "rms_norm_eps": _decimal(cfg.norm_eps),
        "max_position_embeddings": cfg.context,
        "tie_word_embeddings": cfg.tied,
        "attention_bias": cfg.attention_bias,
        "bos_token_id": cfg.bos_id,
        "eos_token_id": sorted(cfg.eos_ids),
        "torch_dtype": "bfloat16",
        "rope_theta": cfg.rope.theta,
        "rope_scaling": _scaling(cfg.rope),
    } | own(cfg)
    _check(values, cfg)
    return values


def _check(values: Values, cfg: ModelConfig) -> None:
    try:
        read = config_from_hf(Checkpoint("safetensors", Path("config.json"), values, b"", [], []), cfg.family)
    except TrimaranError as error:
        raise UnsupportedError(f"config.json cannot say what this model is: {error}") from error
    wrong = [field.name for field in fields(cfg) if not _alike(getattr(read, field.name), getattr(cfg, field.name))]
    if wrong:
        raise UnsupportedError(f"config.json cannot say this model's {', '.join(wrong)}")


def _alike(one: Any, other: Any) -> bool:
    """Numbers are float32 in GGUF and decimal in JSON; ropes are what they turn by."""
    if isinstance(one, RopeSpec) and isinstance(other, RopeSpec) and one.dims == other.dims:
        return np.allclose(rope_table(one, 2), rope_table(other, 2), rtol=1e-6, atol=0)
    if not isinstance(one, float):
        return bool(one == other)
    return bool(np.allclose(one, other, rtol=1e-6, atol=0))


def _decimal(number: float) -> float:
    """The shortest number that is the same float32, which is what GGUF holds."""
    return float(str(np.float32(number)))


def _scaling(rope: RopeSpec) -> Values | None:
    if isinstance(rope.scaling, LinearScaling):
        return {"rope_type": "linear", "factor": _decimal(rope.scaling.factor)}
    if isinstance(rope.scaling, YarnScaling):
        return {
            "rope_type": "yarn",
            "factor": _decimal(rope.scaling.factor),
            "original_max_position_embeddings": rope.scaling.original_context,
            "beta_fast": _decimal(rope.scaling.beta_fast),
            "beta_slow": _decimal(rope.scaling.beta_slow),
            "attention_factor": rope.scaling.magnitude,
        }
    if rope.factors is None:
        return None
    wanted = inverse_frequencies(rope)
    for context in _CONTEXTS:
        scaling = Llama3Scaling(max(rope.factors), 1.0, 4.0, context)
        if np.allclose(inverse_frequencies(RopeSpec(rope.theta, rope.dims, scaling)), wanted, rtol=1e-6, atol=0):
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_context,
            }
    raise UnsupportedError("the file's table of rope frequencies is none of Llama 3, so config.json cannot say it")


_CONTEXTS = [1 << bits for bits in range(5, 21)]  # that a Llama 3 may have been trained for first


def _plain(_: ModelConfig) -> Values:
    return {}


def _qwen3_moe(cfg: ModelConfig) -> Values:
    assert cfg.experts is not None, cfg
    return {
        "num_experts": cfg.experts.experts,
        "num_experts_per_tok": cfg.experts.top_k,
        "moe_intermediate_size": cfg.experts.width,
        "norm_topk_prob": cfg.experts.normalise,
        "mlp_only_layers": sorted(cfg.experts.dense),
    }


def _gemma3(cfg: ModelConfig) -> Values:
    kinds = ["sliding_attention" if i in cfg.windowed else "full_attention" for i in range(cfg.layers)]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(cfg.scale**-2),
        "sliding_window": cfg.window,
        "layer_types": kinds,
        "rope_local_base_freq": None if cfg.local_rope is None else cfg.local_rope.theta,
    }


_FAMILIES: Mapping[str, tuple[str, Callable[[ModelConfig], Values]]] = {
    "llama": ("LlamaForCausalLM", _plain),
    "qwen2": ("Qwen2ForCausalLM", _plain),
    "qwen3": ("Qwen3ForCausalLM", _plain),
    "qwen3_moe": ("Qwen3MoeForCausalLM", _qwen3_moe),
    "gemma3_text": ("Gemma3ForCausalLM", _gemma3),
}
