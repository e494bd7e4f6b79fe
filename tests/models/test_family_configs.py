"""Both spellings of every family's ``config.json`` mean the same: the hub's, and what transformers 5 saves."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
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
        ("deepseek_v3", "routed_scaling_factor", None, "has no routed_scaling_factor"),  # every class has another
        ("glm4_moe", "n_group", None, "has no n_group"),
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


def test_a_choice_of_more_tokens_than_a_row_has_room_for_is_refused(tmp_path: Path) -> None:
    config = json.loads((FAMILIES / "glm_moe_dsa" / "config.json").read_text("utf-8")) | {"index_topk": 1 << 30}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(UnsupportedError, match="up to 65536 tokens here, not 1073741824"):
        read_config_file(tmp_path / "config.json")


@pytest.mark.parametrize(("written", "window"), [({}, 4096), ({"sliding_window": None}, None)])
def test_mistral_has_a_window_unless_the_file_says_null(
    written: dict[str, Any], window: int | None, tmp_path: Path
) -> None:
    config = json.loads((FAMILIES / "mistral" / "config.json").read_text("utf-8")) | {"max_position_embeddings": 32768}
    del config["sliding_window"]
    (tmp_path / "config.json").write_text(json.dumps(config | written), "utf-8")
    assert read_config_file(tmp_path / "config.json").window == window


def test_ministral_scales_queries_in_either_spelling_of_rope(tmp_path: Path) -> None:
    config = json.loads((FAMILIES / "ministral3" / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    new = read_config_file(tmp_path / "config.json")
    scaling = config.pop("rope_parameters")
    config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    assert new.query_scale is not None
    assert read_config_file(tmp_path / "config.json") == new
