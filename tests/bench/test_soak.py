import os
import subprocess
import sys

import pytest

from trimaran.base.errors import EngineDiedError
from trimaran.bench.processes import resident_bytes
from trimaran.bench.served import Served
from trimaran.bench.soak import fitted_growth, soak

MIB = 1 << 20


def test_growth_is_that_of_the_fitted_line_after_warm_up():
    warm_up = [(t, 100 * MIB * t) for t in range(5)]
    leak = [(t, 500 * MIB + MIB * (t - 5)) for t in range(5, 21)]
    assert fitted_growth(warm_up + leak, warm_up=5) == pytest.approx(15 * MIB)
    flat = [(t, 500 * MIB + MIB * (t % 2)) for t in range(5, 21)]
    assert abs(fitted_growth(warm_up + flat, warm_up=5)) < MIB


def test_too_few_samples_are_no_line():
    assert fitted_growth([(0, MIB), (1, MIB), (9, MIB)], warm_up=0) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_includes_children():
    own = resident_bytes(os.getpid())
    code = "import sys; block = bytearray(b'x' * (64 << 20)); print(flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        assert resident_bytes(os.getpid()) > own + 60 * MIB
    finally:
        child.communicate()


async def test_a_server_that_cannot_start_is_an_error_with_its_words(tmp_path):
    with pytest.raises(EngineDiedError, match=r"nowhere\.gguf"):
        async with Served(str(tmp_path / "nowhere.gguf")):
            pass


@pytest.mark.timeout(120)
async def test_ten_seconds_of_load_leave_no_trace(smollm2):
    """The short form of ``python bench/soak.py smollm2``; a small cache makes sequences give up their pages."""
    flags = ["--kv-cache-memory-bytes", "64M"]
    findings = await soak(str(smollm2), seconds=10, concurrency=16, seed=0, flags=flags)
    assert findings.failures == []
    assert findings.checked_answers > 0
    assert findings.requests.total() > 20
