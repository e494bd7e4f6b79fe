"""Tiny models with latent attention; see ``family_configs.py``."""

from scripts.config_sizes import SIZES, Config

LATENT: Config = SIZES | {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
    "attention_bias": False,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "ep_size": 1,
    "pretraining_tp": 1,
}
DEEPSEEK: Config = LATENT | {
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "aux_loss_alpha": 0.001,
    "seq_aux": True,
    "num_nextn_predict_layers": 1,
    "rope_theta": 10000,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
}
INDEXER: Config = {"index_topk": 4, "index_n_heads": 8, "index_head_dim": 32}
GLM_DSA: Config = (
    LATENT
    | INDEXER
    | {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "num_hidden_layers": 7,
        "head_dim": 192,
        "qk_head_dim": 48,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "rms_norm_eps": 0.01,
        "num_nextn_predict_layers": 1,
        "indexer_rope_interleave": True,
        "indexer_types": ["full", "full", "full", "shared", "shared", "shared", "full"],
        "index_topk_freq": 4,
        "index_skip_topk_offset": 3,
        "index_share_for_mtp_iteration": True,
        "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
        "eos_token_id": [2, 3],
    }
)
KIMI_TEXT: Config = LATENT | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "rms_norm_eps": 0.01,
    "aux_loss_alpha": 0.001,
    "seq_aux": True,
    "num_nextn_predict_layers": 0,
    "rope_theta": 50000.0,
    "rope_scaling": DEEPSEEK["rope_scaling"] | {"factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0},
}
KIMI: Config = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "ignore_index": -100,
    "media_placeholder_token_id": 120,
    "tie_word_embeddings": False,
    "use_unified_vision_chunk": True,
    "projection_hidden_size": 32,
    "text_config": KIMI_TEXT,
    "vision_config": {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "patch_size": 14,
        "pos_emb_height": 4,
        "pos_emb_width": 4,
        "pos_emb_time": 2,
    },
}
PACKED: Config = {
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": 32,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
FP8: Config = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.embed_tokens", "mlp.gate", "self_attn.indexers_proj"],
}
LATENT_CONFIGS: dict[str, Config] = {
    "deepseek_v3": DEEPSEEK | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"},
    "deepseek_v32": DEEPSEEK | INDEXER | {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"},
    "kimi_k25": KIMI,
    "kimi_k25_int4": KIMI
    | {
        "quantization_config": PACKED,
        "text_config": KIMI_TEXT | {"quantization_config": PACKED},
    },
    "glm4_moe_lite": LATENT
    | {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.8,
        "rms_norm_eps": 0.01,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 1.0,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "eos_token_id": [2, 3, 4],
    },
    "glm_moe_dsa": GLM_DSA,
    "glm52_fp8": GLM_DSA
    | {
        "hidden_size": 160,
        "intermediate_size": 224,
        "num_hidden_layers": 5,
        "q_lora_rank": 96,
        "kv_lora_rank": 160,
        "qk_rope_head_dim": 32,
        "qk_head_dim": 64,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "index_head_dim": 64,
        "index_n_heads": 8,
        "indexer_types": ["full", "full", "full", "shared", "full"],
        "quantization_config": FP8,
    },
}
