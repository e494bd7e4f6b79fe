"""The tiny checkpoints as files: what every family's tests rest on."""

from pathlib import Path

import numpy as np
import pytest

from .families import FAMILIES, NAMES, golden, tensor_specs

VOCAB, TOKENS = 128, 43


def test_there_is_one_for_every_family_and_quantised_release() -> None:
    assert len(NAMES) == 18


def test_they_stay_small() -> None:
    assert sum(file.stat().st_size for file in Path(FAMILIES).rglob("*")) < 1_500_000


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    arrays = golden(name)
    assert arrays["tokens"].shape == (TOKENS,)
    assert arrays["logits"].shape == (TOKENS, VOCAB)
    assert 1 < arrays["logits"].std() < 1.5
    for row, picks in enumerate(np.moveaxis(arrays.get("selected", np.empty((0, TOKENS, 4))), 1, 0)):
        for pick in picks:
            seen = pick[pick >= 0]
            assert len(seen) == min(row + 1, 4)
            assert (np.diff(seen) > 0).all()
            assert seen.max() <= row


@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_is_without_effect_by_being_one_number_or_zero(name: str) -> None:
    assert all(spec.spread > 0 or spec.given for spec in tensor_specs(name))
