"""Both spellings of every family's ``config.json`` mean the same: the hub's, and what transformers 5 saves."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint import open_checkpoint
from trimaran.models.registry import read_config, read_config_file

from .families import FAMILIES, NAMES, write_checkpoint


@pytest.mark.parametrize("name", NAMES)
def test_what_transformers_saves_means_what_the_hub_says(name: str, tmp_path: Path) -> None:
    with open_checkpoint(write_checkpoint(name, tmp_path)) as checkpoint:
        hub = read_config(checkpoint)
    (tmp_path / "config.json").write_bytes((FAMILIES / name / "config_saved.json").read_bytes())
    with open_checkpoint(tmp_path) as checkpoint:
        saved = read_config(checkpoint)
    assert replace(saved, bos_id=hub.bos_id, eos_ids=hub.eos_ids) == hub  # transformers makes some up


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("gemma3_text", "query_pre_attn_scalar", -1, "query_pre_attn_scalar must be positive"),  # its root is complex
        ("gemma3_text", "query_pre_attn_scalar", 0, "query_pre_attn_scalar must be positive"),
        ("gemma3_text", "_sliding_window_pattern", 0, "sliding_window_pattern must be at least 1"),
        ("deepseek_v3", "qk_nope_head_dim", 0, "qk_nope_head_dim must be at least 1"),
    ],
)
def test_numbers_that_no_arithmetic_takes_are_named(
    name: str, key: str, value: Any, message: str, tmp_path: Path
) -> None:
    config = json.loads((FAMILIES / name / "config.json").read_text("utf-8"))
    config.pop("layer_types", None)
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}), "utf-8")
    with pytest.raises(CheckpointError, match=message):
        read_config_file(tmp_path / "config.json")
