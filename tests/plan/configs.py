"""config.json of published models, as far as the forward pass reads them."""

from pathlib import Path
from typing import Any

from trimaran.checkpoint import Checkpoint
from trimaran.models.config import ModelConfig
from trimaran.models.config_hf import config_from_hf
from trimaran.models.registry import HF

_YARN = {
    "type": "yarn",
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_LATENT = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
}

KIMI_K2: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 163840,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": {**_YARN, "factor": 64.0},
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 384,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.827,
    "num_nextn_predict_layers": 0,
    **_LATENT,
}
DEEPSEEK_V32: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {**_YARN, "factor": 40.0},
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    **_LATENT,
}
GLM_52: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 8e6},
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_routed_experts": 256,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "indexer_types": ["full" if i < 3 or (i - 2) % 4 == 0 else "shared" for i in range(78)],
    **_LATENT,
}
LLAMA_31_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
GEMMA_3_27B: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "vocab_size": 262208,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_hidden_layers": 62,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 168,
    "hidden_activation": "gelu_pytorch_tanh",
}


def config(values: dict[str, Any]) -> ModelConfig:
    """The configuration of a model whose ``config.json`` holds ``values``."""
    checkpoint = Checkpoint("safetensors", Path("/nonexistent"), values, b"", [], [])
    return config_from_hf(checkpoint, HF[values["architectures"][0]])
