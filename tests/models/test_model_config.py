"""Sizes that do not fit together are refused with their values."""

from dataclasses import FrozenInstanceError, replace

import pytest

from trimaran.base.errors import CheckpointError
from trimaran.kernels.program import RopeSpec
from trimaran.models.config import IndexerConfig

from .test_builder import CFG


def test_widths() -> None:
    assert (CFG.q_width, CFG.kv_width) == (32, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"kv_heads": 3}, "4 query heads do not divide among 3"),
        ({"rope": RopeSpec(10000.0, 10)}, "rope rotates 10 of 8"),
        ({"rope": RopeSpec(10000.0, 7)}, "rope rotates 7 of 8"),
        ({"norm_eps": 0.0}, "epsilon"),
        ({"indexer": IndexerConfig(2, 6, 3, frozenset({0}), interleaved=False)}, "indexer's 6 dimensions are fewer"),
    ],
)
def test_impossible_sizes(change: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        replace(CFG, **change)


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        CFG.layers = 2  # type: ignore[misc]
