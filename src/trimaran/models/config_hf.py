"""A ``config.json`` of transformers to ``ModelConfig``.

Source: ``LlamaConfig`` of transformers 4 (``rope_theta`` and ``rope_scaling``) and 5 (``rope_parameters``).
"""

import logging
from pathlib import Path
from typing import Any

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint import Checkpoint
from trimaran.checkpoint.json_file import read_object
from trimaran.kernels.program import RopeScaling, RopeSpec
from trimaran.models.config import ModelConfig
from trimaran.models.fields import Fields

log = logging.getLogger(__name__)

# Keys that say nothing about the forward pass.
_IRRELEVANT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "dtype",
        "initializer_range",
        "is_llama_config",
        "model_type",
        "pad_token_id",
        "pretraining_tp",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "use_cache",
    }
)


def llama_from_hf(checkpoint: Checkpoint) -> ModelConfig:
    """The configuration of a ``LlamaForCausalLM`` with its ``config.json`` and, if present, ``generation_config.json``.

    Raises ``CheckpointError`` on a missing or malformed key, ``UnsupportedError`` on one that would change the result
    in a way that the family does not implement; both name the key. Keys that transformers does not define for this
    architecture are logged.
    """
    own = Fields(checkpoint.metadata, "config.json")
    hidden = own.integer("hidden_size")
    heads = own.integer("num_attention_heads")
    head_dim = own.integer("head_dim", hidden // max(heads, 1))
    context = own.integer("max_position_embeddings")
    _only(own.text("hidden_act", "silu"), "silu", "hidden_act")
    _only(own.flag("mlp_bias", False), False, "mlp_bias")
    _only(own.flag("rope_interleaved", False), False, "rope_interleaved")
    window = own.integer("sliding_window", context)
    if own.flag("use_sliding_window", True) and window < context:
        raise UnsupportedError("config.json sets sliding_window, which the llama family does not implement")
    if (quantisation := own.optional_mapping("quantization_config")) is not None:
        method = quantisation.text("quant_method", "unknown")
        raise UnsupportedError(f"config.json sets quantization_config ({method}); only F32, F16 and BF16 files load")
    config = ModelConfig(
        family="llama",
        vocab=own.integer("vocab_size"),
        hidden=hidden,
        intermediate=own.integer("intermediate_size"),
        layers=own.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=own.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        norm_eps=own.number("rms_norm_eps"),
        rope=_rope(own, head_dim),
        context=context,
        tied=own.flag("tie_word_embeddings", False),
        attention_bias=own.flag("attention_bias", False),
        bos_id=own.optional_integer("bos_token_id"),
        eos_ids=own.token_ids("eos_token_id") | _generation_eos(checkpoint.directory / "generation_config.json"),
    )
    if unread := [key for key in own.unread() if key not in _IRRELEVANT]:
        log.warning("config.json: the llama family does not use %s", ", ".join(unread))
    return config


def _rope(own: Fields, dims: int) -> RopeSpec:
    theta = own.number("rope_theta", 10000.0)  # Llama 1 and 2 do not write it
    old = RopeSpec(theta, dims, _scaling(own.optional_mapping("rope_scaling"), "rope_scaling"))
    parameters = own.optional_mapping("rope_parameters")
    if parameters is None:
        return old
    new = RopeSpec(parameters.number("rope_theta"), dims, _scaling(parameters, "rope_parameters"))
    if ("rope_theta" in own or "rope_scaling" in own) and new != old:
        raise CheckpointError("config.json: rope_parameters contradicts rope_theta and rope_scaling")
    return new


def _scaling(fields: Fields | None, where: str) -> RopeScaling | None:
    if fields is None:
        return None
    kind = fields.text("rope_type", fields.text("type", "default"))  # "type": the spelling before transformers 4.43
    _only(fields.number("partial_rotary_factor", 1.0), 1.0, f"{where}.partial_rotary_factor")
    scaling = None
    if kind == "llama3":
        scaling = RopeScaling(
            factor=fields.number("factor"),
            low_freq_factor=fields.number("low_freq_factor"),
            high_freq_factor=fields.number("high_freq_factor"),
            original_context=fields.integer("original_max_position_embeddings"),
        )
        if scaling.factor <= 0 or not scaling.low_freq_factor < scaling.high_freq_factor:
            raise CheckpointError(f"config.json: {where} needs factor > 0 and low_freq_factor < high_freq_factor")
    elif kind != "default":
        raise UnsupportedError(f"config.json sets {where}.rope_type to {kind!r}; the llama family implements llama3")
    if unread := [key for key in fields.unread() if key != "rope_theta"]:
        raise UnsupportedError(f"config.json sets {where}.{unread[0]}, which rope type {kind!r} does not use")
    return scaling


def _generation_eos(path: Path) -> frozenset[int]:
    if not path.is_file():
        return frozenset()
    values, _ = read_object(path)
    return Fields(values, path.name).token_ids("eos_token_id")


def _only(value: Any, allowed: Any, key: str) -> None:
    if value != allowed:
        raise UnsupportedError(f"config.json sets {key} to {value!r}; the llama family implements only {allowed!r}")
