"""Pages of latents in every format keep the logits near those of transformers, everything else being float32.

Bars are about twice what was measured, on the median over positions as in ``test_families_formats``, whose remarks hold
here: weights of these models are random, which no trained model's are, and sparse attention reads other tokens.
"""

from dataclasses import replace

import pytest

from trimaran.base.formats import KVFormat

from .families import NAMES, golden
from .running import ORACLE, load, run
from .test_families import CHUNKS, EXECUTORS
from .test_families_formats import divergence

BARS = {
    KVFormat.INT8: (0.003, 1.0),  # where all tokens are read, and where an indexer chooses them
    KVFormat.FP8: (0.07, 1.0),
    KVFormat.INT4: (0.35, 1.3),
    KVFormat.INT8_INT4: (0.38, 1.3),
}
MODELS = [name for name in NAMES if load(name).cfg.latent is not None]


@pytest.mark.parametrize("kv_format", BARS)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", MODELS)
def test_coarser_latents_stay_close(name: str, executor: str, kv_format: KVFormat) -> None:
    model, options = load(name), replace(ORACLE, kv_format=kv_format)
    logits = run(model, executor, golden(name)["tokens"], CHUNKS["whole"], options)
    assert 0 < divergence(golden(name)["logits"], logits) < BARS[kv_format][model.cfg.indexer is not None]
