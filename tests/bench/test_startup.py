import sys

import pytest
from tests.server.byte_model import write_byte_model

from .scripts import load_script

MB = 10**6


@pytest.fixture(scope="module")
def script():
    return load_script("startup")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_start_is_timed_and_weighed(script, tmp_path):
    start = script.start_ours(str(write_byte_model(tmp_path)), ["--executor", "null"], vocab=90)
    assert start.seconds > 0
    assert min(start.engine, start.server) > 5 * MB
    assert start.ready > 10 * MB


def test_a_row_has_medians_and_the_highest_peak(script):
    starts = [
        script.Start(seconds, ready * MB, engine * MB, 0)
        for seconds, ready, engine in ((0.9, 150, 200), (0.7, 170, 230), (0.8, 180, 210))
    ]
    assert script.row("x", starts).split() == ["x", "0.80", "(0.70", "-", "0.90)", "170", "230", "-"]
