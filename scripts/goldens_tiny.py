"""Writes tests/data/tiny_llama/: two random Llamas with the logits that transformers computes from them in float32.

``llama3``: bf16 in shards, llama3 rope scaling that bites within the prompt, heads * head_dim != hidden, untied, and a
``config.json`` in the spelling of transformers 5. ``biased``: F16, attention biases, one key/value head, tied, and a
``config.json`` as transformers 4 wrote it. Norms and biases are random too, or errors in them would not show.

``golden.npz`` holds ``tokens`` int32 ``[N]`` and ``logits`` float32 ``[N, vocab]``.

Run ``.venv-goldens/bin/python scripts/goldens_tiny.py`` after ``make goldens`` has made the environment.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "tiny_llama"
TOKENS = 40
LLAMA3 = LlamaConfig(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    rope_parameters={
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=[2, 3],
)
BIASED = LlamaConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=1,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    attention_bias=True,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
)


def main() -> None:
    torch.manual_seed(20)
    write("llama3", LLAMA3, torch.bfloat16)
    write("biased", BIASED, torch.float16)
    config = json.loads((FOLDER / "biased" / "config.json").read_text("utf-8"))
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    (FOLDER / "biased" / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def write(name: str, config: LlamaConfig, dtype: torch.dtype) -> None:
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            tensor.normal_(1.0 if "norm" in key else 0.0, 0.2 if "norm" in key or "bias" in key else 0.3)
    model.to(dtype).save_pretrained(folder, max_shard_size="100KB")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = torch.randint(4, config.vocab_size, (TOKENS,))
    with torch.inference_mode():
        logits = model(tokens[None]).logits[0]
    np.savez_compressed(folder / "golden.npz", tokens=tokens.numpy().astype(np.int32), logits=logits.numpy())
    print(
        f"{name}: {sum(file.stat().st_size for file in folder.iterdir())} bytes, logits up to {logits.abs().max():.2f}"
    )


if __name__ == "__main__":
    main()
