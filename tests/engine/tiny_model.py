"""Writes a random Llama of a few kilobytes, as a directory with config.json and model.safetensors."""

import json
from pathlib import Path

import numpy as np

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTER, LAYERS, CONTEXT = 96, 64, 4, 2, 16, 96, 2, 128


def shapes(vocab: int = VOCAB) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (vocab, HIDDEN),
    }
    for layer in range(LAYERS):
        for name, shape in {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INTER, HIDDEN),
            "mlp.up_proj": (INTER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTER),
        }.items():
            found[f"model.layers.{layer}.{name}.weight"] = shape
    return found


def write_model(
    directory: Path,
    *,
    nan_in: str | None = None,
    nan_row: int = 0,
    vocab: int = VOCAB,
    context: int = CONTEXT,
    seed: int = 0,
) -> Path:
    """``nan_in`` names a tensor of which one row is made NaN; everything else depends on ``seed`` alone."""
    directory.mkdir()
    rng = np.random.default_rng(seed)
    header, data = {}, b""
    for name, shape in shapes(vocab).items():
        spread = 1.0 if len(shape) == 1 else 2.0 / np.sqrt(shape[1])
        values = (rng.standard_normal(shape) * spread).astype(np.float32)
        if name == nan_in:
            values[nan_row] = np.nan
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    head = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory
