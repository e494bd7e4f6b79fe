"""Fixtures that several test packages share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real small model of the catalogue, pulled once into the user's cache."""
    from trimaran.checkpoint.sources import resolve

    return resolve("smollm2").path
