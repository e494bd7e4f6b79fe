"""Every family against the logits that transformers computes from the same files, on both executors.

Weights and pages are fp32; the prompt is computed at once, in uneven chunks and token by token.
"""

import numpy as np
import pytest

from .families import NAMES, golden
from .running import load, run

EXECUTORS = ("reference", "native")
CHUNKS = {"whole": (43,), "chunked": (5, 1, 17, 3, 16, 1), "tokens": (1,) * 43}
CASES = [(name, executor) for name in NAMES for executor in EXECUTORS]


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize(("name", "executor"), CASES)
def test_logits_are_those_of_transformers(name: str, executor: str, chunks: str) -> None:
    expected = golden(name)
    logits = run(load(name), executor, expected["tokens"], CHUNKS[chunks])
    assert np.abs(logits - expected["logits"]).max() <= 1e-4
