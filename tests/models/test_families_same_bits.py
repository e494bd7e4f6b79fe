"""On native a sequence's logits have the same bits alone and in company, in any chunks, on any number of threads."""

from dataclasses import replace

import numpy as np
import pytest

from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat

from .families import NAMES, golden
from .running import ORACLE, load, run, run_together
from .test_families import CHUNKS

FORMATS = {
    "fp32": (WeightFormat.FP32, ORACLE),
    "int8": (WeightFormat.INT8, replace(ORACLE, kv_format=KVFormat.INT8, activations=ActivationFormat.INT8)),
}


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_same_bits(name: str, fmt: str) -> None:
    weights, options = FORMATS[fmt]
    model, tokens = load(name, weights), golden(name)["tokens"]
    alone = run(model, "native", tokens, CHUNKS["whole"], options)
    for chunks in ("chunked", "tokens"):
        np.testing.assert_array_equal(run(model, "native", tokens, CHUNKS[chunks], options), alone, chunks)
    three = replace(options, threads=3)
    np.testing.assert_array_equal(run(model, "native", tokens, CHUNKS["whole"], three), alone, "threads")
    others = [tokens[::-1].copy(), tokens, np.roll(tokens, 5)[:21]]
    for chunk in (1, 7, 20):
        together = run_together(model, "native", others, chunk, three)
        np.testing.assert_array_equal(together[1], alone, f"neighbours, {chunk} rows a step")
