"""A ``config.json`` of transformers to ``ModelConfig``: what all families share. ``families_hf.py`` has what each adds.

Source: the configuration classes of transformers 4 and 5, and the files that vendors publish.
"""

import logging
from typing import Any

from trimaran.base.errors import UnsupportedError
from trimaran.checkpoint import Checkpoint
from trimaran.checkpoint.json_file import read_object
from trimaran.models.config import ModelConfig
from trimaran.models.families_hf import ACTIVATIONS, DEFAULTS, ENCODERS, NORM_EPS, READERS, only
from trimaran.models.fields import Fields
from trimaran.models.pooling import read_encoder

log = logging.getLogger(__name__)

# Keys that say nothing about the forward pass of a text model.
_IRRELEVANT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "auto_map",
        "cache_implementation",
        "dtype",
        "ep_size",
        "gradient_checkpointing",
        "hidden_dropout_prob",
        "initializer_range",
        "is_llama_config",
        "model_type",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "quantization_config",  # what is quantised is told by the tensors
        "router_aux_loss_coef",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "use_cache",
    }
)


def config_from_hf(checkpoint: Checkpoint, model_type: str | None) -> ModelConfig:
    """The configuration of a checkpoint with its ``config.json`` and, if present, ``generation_config.json``.

    ``model_type`` says which family reads it; ``None``: the file's ``text_config`` does. Raises ``CheckpointError`` on
    a missing or malformed key, ``UnsupportedError`` on one that would change the result in a way that the family does
    not implement; both name the key. Keys that no family reads are logged.
    """
    whole = Fields(checkpoint.metadata, "config.json")
    own = whole.optional_mapping("text_config") or whole
    model_type = model_type or own.text("model_type")
    if model_type not in READERS:
        raise UnsupportedError(f"config.json: text_config.model_type {model_type!r} is not supported")
    own = own.with_defaults(DEFAULTS.get(model_type, {}))
    activation = ACTIVATIONS.get(model_type, "silu")
    only(own.text("hidden_act", own.text("hidden_activation", activation)), activation, "hidden_act")
    values = _common(own, NORM_EPS.get(model_type, "rms_norm_eps"))
    values["tied"] = whole.flag("tie_word_embeddings", own.flag("tie_word_embeddings", False))
    values["eos_ids"] = own.token_ids("eos_token_id") | whole.token_ids("eos_token_id") | _generation_eos(checkpoint)
    values |= READERS[model_type](own)
    if model_type in ENCODERS:
        values["encoder"], values["context"] = read_encoder(checkpoint, own)
    config = ModelConfig(family=model_type, **values)
    if unread := [key for key in own.unread() if key not in _IRRELEVANT]:
        log.info("config.json: the %s family does not use %s", model_type, ", ".join(unread))
    return config


def _common(own: Fields, norm_eps: str) -> dict[str, Any]:
    hidden, heads = own.integer("hidden_size"), own.integer("num_attention_heads")
    return {
        "vocab": own.integer("vocab_size"),
        "hidden": hidden,
        "intermediate": own.integer("intermediate_size"),
        "layers": len(own.layers("num_hidden_layers")),
        "heads": heads,
        "kv_heads": own.integer("num_key_value_heads", heads),
        "head_dim": own.integer("head_dim", hidden // max(heads, 1)),
        "norm_eps": own.number(norm_eps),
        "context": own.integer("max_position_embeddings"),
        "attention_bias": own.flag("attention_bias", False),
        "bos_id": own.optional_integer("bos_token_id"),
    }


def _generation_eos(checkpoint: Checkpoint) -> frozenset[int]:
    path = checkpoint.directory / "generation_config.json"
    if not path.is_file():
        return frozenset()
    values, _ = read_object(path, checkpoint.read)
    return Fields(values, path.name).token_ids("eos_token_id")
