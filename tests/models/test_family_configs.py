"""Both spellings of every family's ``config.json`` mean the same: the hub's, and what transformers 5 saves."""

from dataclasses import replace
from pathlib import Path

import pytest

from trimaran.checkpoint import open_checkpoint
from trimaran.models.registry import read_config

from .families import FAMILIES, NAMES, write_checkpoint


@pytest.mark.parametrize("name", NAMES)
def test_what_transformers_saves_means_what_the_hub_says(name: str, tmp_path: Path) -> None:
    with open_checkpoint(write_checkpoint(name, tmp_path)) as checkpoint:
        hub = read_config(checkpoint)
    (tmp_path / "config.json").write_bytes((FAMILIES / name / "config_saved.json").read_bytes())
    with open_checkpoint(tmp_path) as checkpoint:
        saved = read_config(checkpoint)
    assert replace(saved, bos_id=hub.bos_id, eos_ids=hub.eos_ids) == hub  # transformers makes some up
