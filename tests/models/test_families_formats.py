"""Weights and pages in coarser formats keep the logits near those of transformers: Kullback-Leibler divergence.

The median over the prompt's positions is bounded, because in so small a model a rounding that moves one token to
another expert shows much more than the rounding itself. Where attention is sparse, most positions read other tokens:
FP8 keys of indexers, and 4 of 43 tokens. The bars are about twice what was measured.
"""

from dataclasses import replace

import numpy as np
import pytest

from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat

from .families import NAMES, golden
from .running import ORACLE, load, run
from .test_families import CHUNKS, EXECUTORS

INT8 = replace(ORACLE, kv_format=KVFormat.INT8, activations=ActivationFormat.INT8)
FORMATS = {
    "bf16": (WeightFormat.BF16, replace(ORACLE, kv_format=KVFormat.BF16)),
    "int8": (WeightFormat.INT8, INT8),
    "int4": (WeightFormat.INT4, INT8),
    "int4z": (WeightFormat.INT4Z, INT8),
}
BARS = {
    "dense": {"bf16": 5e-5, "int8": 3e-3, "int4": 0.2, "int4z": 0.2},
    "experts": {"bf16": 2e-3, "int8": 0.015, "int4": 0.7, "int4z": 0.7},
    "sparse": {"bf16": 0.8, "int8": 0.8, "int4": 1.5, "int4z": 1.5},
}


def kind(name: str) -> str:
    cfg = load(name).cfg
    return "sparse" if cfg.indexer is not None else "experts" if cfg.experts is not None else "dense"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def divergence(expected: np.ndarray, logits: np.ndarray) -> float:
    p, q = log_softmax(expected), log_softmax(logits)
    return float(np.median((np.exp(p) * (p - q)).sum(axis=1)))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", NAMES)
def test_coarser_formats_stay_close(name: str, executor: str, fmt: str) -> None:
    weights, options = FORMATS[fmt]
    logits = run(load(name, weights), executor, golden(name)["tokens"], CHUNKS["whole"], options)
    assert divergence(golden(name)["logits"], logits) < BARS[kind(name)][fmt]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", NAMES)
def test_weights_that_are_bf16_numbers_lose_nothing_in_bf16(name: str, executor: str) -> None:
    """With fp32 pages; only what a checkpoint stores as float32 is rounded, and routers keep that."""
    logits = run(load(name, WeightFormat.BF16), executor, golden(name)["tokens"], CHUNKS["whole"])
    assert np.abs(logits - golden(name)["logits"]).max() <= 1e-4
