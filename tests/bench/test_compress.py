"""``bench/compress.py``: memory does not grow with the model."""

import sys

import pytest

from .scripts import load_script


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("fmt", ["int4", "fp8"])
def test_a_longer_model_takes_no_more_memory(fmt: str) -> None:
    script = load_script("compress")
    short, long = (script.measure(layers, fmt, 1 << 24, calibrated=False) for layers in (1, 3))
    assert long.peak - short.peak < 80e6  # of 180 MB more that are read: 64 MB may stay until they are let go
