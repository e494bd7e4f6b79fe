"""Fixtures that several test packages share."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: neither the time of one example nor that of making them is tested.
settings.register_profile("trimaran", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trimaran")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real small model of the catalogue, pulled once into the user's cache."""
    from trimaran.checkpoint.sources import resolve

    return resolve("smollm2").path
