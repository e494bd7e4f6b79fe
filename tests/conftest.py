"""Fixtures that several test packages share."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: neither the time of one example nor that of making them is tested.
settings.register_profile("trimaran", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trimaran")

# A shell starts jobs in the background deaf to Ctrl-C, and what tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests of models would fill the user's cache with packed weights, and load some that other tests have left.
os.environ["TRIMARAN_PACKED_CACHE_BYTES"] = "0"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real small model of the catalogue, pulled once into the user's cache."""
    from trimaran.checkpoint.sources import resolve

    return resolve("smollm2").path
