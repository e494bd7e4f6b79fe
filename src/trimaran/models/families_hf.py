"""What each family reads of a ``config.json`` beside what all share: a function a family, by ``model_type``.

Source: the configuration classes of transformers 4 and 5, and the files that vendors publish. Each function raises
``CheckpointError`` on a missing or malformed key and ``UnsupportedError`` on what the family does not implement.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.kernels.program import QueryScale
from trimaran.models.config import NO_ROPE, ExpertsConfig, IndexerConfig, LatentConfig
from trimaran.models.fields import Fields
from trimaran.models.rope_hf import latent_scale, read_local_and_global_rope, read_rope


def only(value: Any, allowed: Any, key: str) -> None:
    """Raises ``UnsupportedError`` unless ``key`` has the only value that is implemented."""
    if value != allowed:
        raise UnsupportedError(f"config.json sets {key} to {value!r}; only {allowed!r} is implemented")


def _head_dim(own: Fields) -> int:
    return own.integer("head_dim", own.integer("hidden_size") // max(own.integer("num_attention_heads"), 1))


def _layers(own: Fields) -> range:
    return own.layers("num_hidden_layers")


def _llama(own: Fields) -> dict[str, Any]:
    only(own.flag("mlp_bias", False), False, "mlp_bias")
    only(own.flag("rope_interleaved", False), False, "rope_interleaved")
    if _window_everywhere(own):
        raise UnsupportedError("config.json sets sliding_window, which the llama family does not have")
    return {"rope": read_rope(own, _head_dim(own))}


def _window_everywhere(own: Fields) -> dict[str, Any]:
    """A sliding window in all layers, as Mistral 7B v0.1 has one; one as long as the context is none."""
    context = own.integer("max_position_embeddings")
    window = own.integer("sliding_window", context)
    if not own.flag("use_sliding_window", True) or window >= context:
        return {}
    return {"window": window, "windowed": frozenset(_layers(own))}


def _mistral(own: Fields) -> dict[str, Any]:
    return {"rope": read_rope(own, _head_dim(own)), **_window_everywhere(own)}


def _ministral3(own: Fields) -> dict[str, Any]:
    values = _mistral(own)
    parameters = own.optional_mapping("rope_parameters") or own.optional_mapping("rope_scaling")
    beta = 0.0 if parameters is None else parameters.number("llama_4_scaling_beta", 0.0)
    if parameters is not None and beta:
        values["query_scale"] = QueryScale(beta, parameters.integer("original_max_position_embeddings"))
    return values


def _qwen2(own: Fields) -> dict[str, Any]:
    values = {"rope": read_rope(own, _head_dim(own)), "attention_bias": True}
    if own.flag("use_sliding_window", False):
        raise UnsupportedError("config.json sets use_sliding_window, which is not implemented for Qwen")
    return values


def _qwen3(own: Fields) -> dict[str, Any]:
    return {**_qwen2(own), "attention_bias": own.flag("attention_bias", False), "qk_norm": True}


def _qwen3_moe(own: Fields) -> dict[str, Any]:
    step = own.integer("decoder_sparse_step", 1)
    dense = own.integers("mlp_only_layers") | {i for i in _layers(own) if (i + 1) % max(step, 1)}
    count = "num_local_experts" if "num_local_experts" in own else "num_experts"  # what transformers 5 saves, the hub
    experts = ExpertsConfig(
        experts=own.integer(count),
        top_k=own.integer("num_experts_per_tok"),
        width=own.integer("moe_intermediate_size"),
        shared_width=0,
        dense=frozenset(dense),
        scoring="softmax",
        normalise=own.flag("norm_topk_prob", False),
    )
    return {**_qwen3(own), "experts": experts}


def _gemma3(own: Fields) -> dict[str, Any]:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if key in own:
            raise UnsupportedError(f"config.json sets {key}, which Gemma 3 does not have")
    only(own.flag("use_bidirectional_attention", False), False, "use_bidirectional_attention")
    head_dim, kinds = own.integer("head_dim"), own.texts("layer_types")
    pattern = own.count("sliding_window_pattern", own.integer("_sliding_window_pattern", 6))
    sliding = {i for i in _layers(own) if (kinds[i] == "sliding_attention" if i < len(kinds) else (i + 1) % pattern)}
    local, everywhere = read_local_and_global_rope(own, head_dim)
    if not (scalar := own.number("query_pre_attn_scalar")) > 0:
        raise CheckpointError(f"config.json: query_pre_attn_scalar must be positive, not {scalar}")
    return {
        "rope": everywhere,
        "local_rope": local,
        "window": own.integer("sliding_window"),
        "windowed": frozenset(sliding),
        "qk_norm": True,
        "scale": scalar**-0.5,
    }


def _sigmoid_experts(own: Fields) -> ExpertsConfig:
    """The experts of DeepSeek-V3 and what was built after it. Groups and factor have no default: each vendor's class
    has another."""
    only(own.text("scoring_func", "sigmoid"), "sigmoid", "scoring_func")
    only(own.text("topk_method", "noaux_tc"), "noaux_tc", "topk_method")
    width, shared = own.integer("moe_intermediate_size"), own.integer("n_shared_experts", 0)
    first = own.integer("first_k_dense_replace", 0)
    only(own.integer("moe_layer_freq", 1), 1, "moe_layer_freq")
    return ExpertsConfig(
        experts=own.integer("n_routed_experts"),
        top_k=own.integer("num_experts_per_tok"),
        width=width,
        shared_width=shared * width,
        dense=frozenset(i for i in _layers(own) if i < first),
        scoring="sigmoid",
        groups=own.integer("n_group"),
        top_groups=own.integer("topk_group"),
        normalise=own.flag("norm_topk_prob", True),
        epsilon=1e-20,
        factor=own.number("routed_scaling_factor"),
    )


def _mtp_layers(own: Fields) -> int:
    return own.integer("num_nextn_predict_layers", own.integer("num_mtp_layers", 0))


def _glm4_moe(own: Fields) -> dict[str, Any]:
    return {
        "rope": read_rope(own, _head_dim(own), partial=0.5),
        "qk_norm": own.flag("use_qk_norm", False),
        "experts": _sigmoid_experts(own),
        "mtp_layers": _mtp_layers(own),
    }


def _minimax_m2(own: Fields) -> dict[str, Any]:
    experts = ExpertsConfig(
        experts=own.integer("num_local_experts"),
        top_k=own.integer("num_experts_per_tok"),
        width=own.integer("intermediate_size"),
        shared_width=0,
        dense=frozenset(),
        scoring="sigmoid",
    )
    only(own.integer("shared_intermediate_size", 0), 0, "shared_intermediate_size")
    only(own.text("scoring_func", "sigmoid"), "sigmoid", "scoring_func")
    only(own.text("qk_norm_type", "per_layer"), "per_layer", "qk_norm_type")
    kinds = own.integers("attn_type_list")
    only(kinds - {1}, frozenset(), "attn_type_list")
    return {
        "rope": read_rope(own, _head_dim(own)),
        "qk_norm": own.flag("use_qk_norm", True),
        "experts": experts,
        "mtp_layers": 0,  # num_mtp_modules is set, but no file ships their tensors
    }


def _deepseek_v3(own: Fields) -> dict[str, Any]:
    nope, dims = own.count("qk_nope_head_dim"), own.count("qk_rope_head_dim")
    only(own.flag("rope_interleave", True), True, "rope_interleave")
    only(own.flag("attention_bias", False), False, "attention_bias")
    latent = LatentConfig(own.integer("q_lora_rank"), own.integer("kv_lora_rank"), nope, own.integer("v_head_dim"))
    own.optional_integer("head_dim")  # what files say there is not the width of anything
    return {
        "kv_heads": own.integer("num_attention_heads"),
        "head_dim": nope + dims,
        "rope": read_rope(own, dims),
        "scale": (nope + dims) ** -0.5 * latent_scale(own),
        "latent": latent,
        "experts": _sigmoid_experts(own),
        "mtp_layers": _mtp_layers(own),
    }


def _deepseek_v32(own: Fields) -> dict[str, Any]:
    return {**_deepseek_v3(own), "indexer": _indexer(own, frozenset(_layers(own)), interleaved=False)}


def _glm_moe_dsa(own: Fields) -> dict[str, Any]:
    only(own.flag("indexer_rope_interleave", True), True, "indexer_rope_interleave")
    layers, kinds = _layers(own), own.texts("indexer_types")
    every, offset = own.integer("index_topk_freq", 1), own.integer("index_skip_topk_offset", 0)
    if kinds:
        full = {i for i in layers if i >= len(kinds) or kinds[i] == "full"}
    else:
        full = {i for i in layers if max(i - offset + 1, 0) % max(every, 1) == 0}
    return {**_deepseek_v3(own), "indexer": _indexer(own, frozenset(full), interleaved=True)}


def _indexer(own: Fields, layers: frozenset[int], *, interleaved: bool) -> IndexerConfig:
    return IndexerConfig(
        heads=own.integer("index_n_heads"),
        dim=own.integer("index_head_dim"),
        top_k=own.integer("index_topk"),
        layers=layers,
        interleaved=interleaved,
    )


# What vendors leave out of a file when it is what the class of transformers says.
def _bert(own: Fields) -> dict[str, Any]:
    only(own.text("position_embedding_type", "absolute"), "absolute", "position_embedding_type")
    only(own.flag("is_decoder", False), False, "is_decoder")
    return {"rope": NO_ROPE, "attention_bias": True, "tied": False}  # the output matrix is of no use here


DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "bos_token_id": 2,
        "eos_token_id": 1,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "vocab_size": 262208,
    },
    "bert": {"hidden_act": "gelu", "vocab_size": 30522},
    "mistral": {"sliding_window": 4096},  # files of models without a window say null
}
ACTIVATIONS = {"gemma3_text": "gelu_pytorch_tanh", "bert": "gelu"}
ENCODERS = frozenset({"bert"})
NORM_EPS = {"bert": "layer_norm_eps"}  # what families do not call rms_norm_eps
READERS: Mapping[str, Callable[[Fields], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "ministral3": _ministral3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma3_text": _gemma3,
    "glm4_moe": _glm4_moe,
    "minimax_m2": _minimax_m2,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "glm4_moe_lite": _deepseek_v3,
    "deepseek_v32": _deepseek_v32,
    "glm_moe_dsa": _glm_moe_dsa,
    "bert": _bert,
}
