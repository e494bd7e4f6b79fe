"""The Llama family against logits that transformers computed from the same files (scripts/goldens_tiny.py)."""

from pathlib import Path

import numpy as np
import pytest

from trimaran.base.formats import ActivationFormat, CacheGroup, HeadsCache, KVFormat, WeightFormat
from trimaran.kernels.program import Attention, Linear, RmsNorm
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.step import ExecutorOptions, StepInputs
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config

from .tiny_files import NAMES, TINY, InMemory, open_tiny, write_gguf


def logits(checkpoint: InMemory, tokens: np.ndarray, weight_format: WeightFormat | None) -> np.ndarray:
    cfg = read_config(checkpoint)
    program = build_program(cfg)
    weights = load_weights(checkpoint, cfg, program, weight_format)
    options = ExecutorOptions(KVFormat.FP32, ActivationFormat.FP32, num_pages=9, max_rows=64, max_sequences=64)
    executor = ReferenceExecutor(program, weights, options)
    count = len(tokens)
    zero, table = np.zeros(1, np.int32), np.array([[4, 2, 8, 1]], np.int32)
    rows = np.arange(count, dtype=np.int32)
    out = executor.run(StepInputs(tokens, np.array([0, count], np.int32), zero, zero, (table,), rows, want_logits=True))
    assert out.logits is not None
    return out.logits


@pytest.mark.parametrize("name", NAMES)
def test_safetensors_give_the_logits_of_transformers(name: str) -> None:
    golden = np.load(TINY / name / "golden.npz")
    ours = logits(open_tiny(name), golden["tokens"], WeightFormat.FP32)
    np.testing.assert_allclose(ours, golden["logits"], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_gguf_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    golden = np.load(TINY / name / "golden.npz")
    ours = logits(write_gguf(name, tmp_path / "tiny.gguf"), golden["tokens"], None)
    np.testing.assert_allclose(ours, golden["logits"], atol=1e-4)


@pytest.mark.parametrize(
    ("weight_format", "least"),
    [(WeightFormat.BF16, 0.999), (WeightFormat.INT8, 0.99), (WeightFormat.INT4, 0.7), (WeightFormat.INT4Z, 0.7)],
)
def test_other_weight_formats_stay_close(weight_format: WeightFormat, least: float) -> None:
    golden = np.load(TINY / "biased" / "golden.npz")
    ours = logits(open_tiny("biased"), golden["tokens"], weight_format)
    assert np.corrcoef(ours.ravel(), golden["logits"].ravel())[0, 1] > least


def test_the_program_reads_like_the_model() -> None:
    cfg = read_config(open_tiny("biased"))
    program = build_program(cfg)
    attention = [op for op in program.ops if isinstance(op, Attention)]
    assert [op.layer for op in attention] == [0, 1, 2]
    assert (attention[0].heads, attention[0].kv_heads, attention[0].head_dim) == (4, 1, 8)
    assert attention[0].scale == pytest.approx(8**-0.5)
    assert sum(isinstance(op, Linear) for op in program.ops) == 4 * 3 + 1
    assert all(op.eps == 1e-6 for op in program.ops if isinstance(op, RmsNorm))
    assert program.weights["model.layers.2.self_attn.qkv"].shape == (4 * 8 + 2 * 8, 32)
    assert program.weights["model.layers.2.self_attn.o_proj.bias"].shape == (32,)
    assert not program.weights["model.layers.2.self_attn.o_proj.bias"].matrix
    assert program.weights["model.layers.0.mlp.gate_up"].shape == (128, 32)
    assert (program.vocab, program.hidden, program.context) == (96, 32, 64)
    assert program.groups == (CacheGroup((HeadsCache(3, 1, 8),)),)
