"""Families with experts: a sequence gets the same bits alone, in company, in chunks, and from any number of threads."""

from dataclasses import replace

import numpy as np
import pytest

from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.kernels.step import ExecutorOptions

from .running import ORACLE, load, run, run_together

FAST = replace(ORACLE, kv_format=KVFormat.INT8, activations=ActivationFormat.INT8, threads=2)


@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe", "minimax_m2"])
@pytest.mark.parametrize(("fmt", "options"), [(WeightFormat.FP32, ORACLE), (WeightFormat.INT4, FAST)])
def test_bits_do_not_depend_on_the_company(name: str, fmt: WeightFormat, options: ExecutorOptions) -> None:
    model = load(name, fmt)
    sequences = [np.random.default_rng(i).integers(3, model.cfg.vocab, 30).astype(np.int32) for i in range(3)]
    together = run_together(model, "native", sequences, 7, options)
    for tokens, logits in zip(sequences, together, strict=True):
        assert run(model, "native", tokens, (1, 1, 13, 15), replace(options, threads=1)).tobytes() == logits.tobytes()
