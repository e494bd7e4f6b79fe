"""Every family against the logits that transformers computes from the same files, on both executors.

Weights and pages are fp32; the prompt is computed at once, in uneven chunks and token by token.
"""

import numpy as np
import pytest

from trimaran.base.errors import TrimaranError

from .families import NAMES, golden
from .running import load, run

EXECUTORS = ("reference", "native")
CHUNKS = {"whole": (43,), "chunked": (5, 1, 17, 3, 16, 1), "tokens": (1,) * 43}
_LATENT = {"deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm52_fp8", "glm_moe_dsa", "kimi_k25", "kimi_k25_int4"}
NOT_YET = {"native": _LATENT}  # must shrink to nothing
CASES = [(name, executor) for name in NAMES for executor in EXECUTORS]


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize(("name", "executor"), CASES)
def test_logits_are_those_of_transformers(name: str, executor: str, chunks: str) -> None:
    if name in NOT_YET.get(executor, ()):
        pytest.skip(f"{executor} does not run {name} yet")
    expected = golden(name)
    logits = run(load(name), executor, expected["tokens"], CHUNKS[chunks])
    assert np.abs(logits - expected["logits"]).max() <= 1e-4


@pytest.mark.parametrize(("name", "executor"), [case for case in CASES if case[0] in NOT_YET.get(case[1], ())])
def test_what_is_not_there_yet_is_refused(name: str, executor: str) -> None:
    with pytest.raises((TrimaranError, NotImplementedError, AssertionError)):
        run(load(name), executor, golden(name)["tokens"], CHUNKS["whole"])
