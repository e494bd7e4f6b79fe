"""The real small model: its file's own grids are kept, and it knows its capitals."""

from pathlib import Path

import numpy as np

from trimaran.checkpoint import open_checkpoint
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.open import open_executor
from trimaran.kernels.step import ExecutorOptions, StepInputs
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config
from trimaran.quant.gguf_blocks import dequantise as dequantise_tensor


def test_it_loads_as_it_is_and_continues_a_sentence(smollm2: Path) -> None:
    with open_checkpoint(smollm2) as checkpoint:
        cfg = read_config(checkpoint)
        program = build_program(cfg)
        weights = load_weights(checkpoint, cfg, program, None)
        vocabulary = {text: token for token, text in enumerate(checkpoint.metadata["tokenizer.ggml.tokens"])}
        down = next(tensor for tensor in checkpoint.tensors() if tensor.name == "blk.7.ffn_down.weight")
        np.testing.assert_array_equal(dequantise(weights["model.layers.7.mlp.down_proj"]), dequantise_tensor(down))
    assert (cfg.layers, cfg.heads, cfg.kv_heads, cfg.head_dim, cfg.tied) == (30, 9, 3, 64, True)
    formats = {name: weight.fmt for name, weight in weights.items() if program.weights[name].matrix}
    assert formats.pop("lm_head") == formats.pop("model.embed_tokens") == "int8"
    assert set(formats.values()) == {"int4z"}

    executor = open_executor("reference", program, weights, ExecutorOptions(num_pages=2, max_sequences=1))
    tokens = np.array([vocabulary[text] for text in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")], np.int32)
    zero, one, last = np.zeros(1, np.int32), np.ones((1, 1), np.int32), np.array([4], np.int32)
    out = executor.run(StepInputs(tokens, np.array([0, 5], np.int32), zero, zero, (one,), last, want_logits=False))
    assert out.greedy.tolist() == [vocabulary["ĠParis"]]
