"""config.json: both spellings, and every key that would change the result is read or refused."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.kernels.program import Llama3Scaling, RopeSpec
from trimaran.models.config import ModelConfig
from trimaran.models.config_hf import config_from_hf

from .tiny_files import InMemory, open_tiny

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 20000.0,
    "eos_token_id": 2,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALING = Llama3Scaling(8.0, 1.0, 4.0, 8192)


def read(directory: Path = Path("/nonexistent"), drop: str | None = None, **changes: Any) -> ModelConfig:
    metadata = {key: value for key, value in (BASE | changes).items() if key != drop}
    return config_from_hf(InMemory("safetensors", metadata, directory, {}), "llama")


def test_a_file_of_transformers_5() -> None:
    cfg = config_from_hf(open_tiny("llama3"), "llama")
    assert cfg.rope == RopeSpec(500.0, 24, Llama3Scaling(8.0, 1.0, 4.0, 16))
    assert (cfg.heads, cfg.kv_heads, cfg.head_dim, cfg.hidden) == (4, 2, 24, 64)
    assert (cfg.tied, cfg.attention_bias, cfg.bos_id, cfg.eos_ids) == (False, False, 1, frozenset({2, 3}))


def test_a_file_of_transformers_4() -> None:
    cfg = config_from_hf(open_tiny("biased"), "llama")
    assert cfg.rope == RopeSpec(10000.0, 8)
    assert (cfg.kv_heads, cfg.head_dim, cfg.context) == (1, 8, 64)
    assert (cfg.tied, cfg.attention_bias, cfg.eos_ids) == (True, True, frozenset({2}))


def test_what_the_format_lets_files_leave_out() -> None:
    cfg = read()
    assert (cfg.head_dim, cfg.kv_heads, cfg.tied, cfg.bos_id) == (16, 4, False, None)
    assert read(drop="rope_theta").rope.theta == 10000.0


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 20000.0, **LLAMA3}, "rope_theta": None},
        {
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 20000.0, **LLAMA3},
            "rope_scaling": {"rope_type": "llama3", **LLAMA3},
        },
    ],
    ids=["rope_scaling", "type", "rope_parameters", "both"],
)
def test_every_spelling_of_rope_scaling(spelling: dict[str, Any]) -> None:
    assert read(**spelling).rope == RopeSpec(20000.0, 16, SCALING)


@pytest.mark.parametrize("key", [key for key in BASE if key not in ("architectures", "rope_theta", "eos_token_id")])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json has no {key}"):
        read(drop=key)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size must be an integer, not '64'"),
        ({"hidden_size": True}, "hidden_size must be an integer"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id must hold token ids"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters has no rope_theta"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "contradicts"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling has no low_freq_factor"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "low_freq_factor <"),
        ({"rope_scaling": "llama3"}, "rope_scaling must be an object"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"rope_theta": float("nan")}, "rope_theta must be a finite number, not nan"),
        ({"rope_theta": 10**400}, "rope_theta must be a finite number, not 10000"),
        ({"rope_theta": 0}, "base frequency must be positive, not 0"),
        ({"head_dim": 10**40}, "head_dim is no number of 32 bits: 10000"),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers 10001 is not a number of layers"),
        ({"partial_rotary_factor": 1e308}, "partial_rotary_factor must lie between 0 and 1"),
        ({"rope_theta": 1, "rope_scaling": YARN}, "YaRN's numbers make no sense"),
        ({"rope_scaling": {**YARN, "beta_slow": 0}}, "YaRN's numbers make no sense"),
        ({"rope_scaling": {**YARN, "original_max_position_embeddings": 0}}, "context of 0 tokens"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": float("inf")}}, "factor must be a finite number"),
    ],
)
def test_malformed_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act to 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"sliding_window": 128}, "sliding_window, which the llama family does not have"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope_scaling.rope_type to 'longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "beta_fast": 32}}, "rope_scaling.beta_fast"),
    ],
)
def test_what_the_family_does_not_implement_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read(**changes)


@pytest.mark.parametrize("changes", [{"sliding_window": 256}, {"sliding_window": 64, "use_sliding_window": False}])
def test_a_window_that_is_not_in_force(changes: dict[str, Any]) -> None:
    assert read(**changes).window is None


def test_keys_of_other_architectures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        read(final_logit_softcapping=30.0, use_cache=True, pad_token_id=0)
    assert caplog.messages == ["config.json: the llama family does not use final_logit_softcapping"]


def test_end_tokens_of_the_generation_config_are_added(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert read(tmp_path).eos_ids == {2, 7, 8}
    assert read(tmp_path, eos_token_id=None).eos_ids == {7, 8}
    for damaged, message in (
        ("{", r"generation_config\.json is not valid JSON"),
        ("[]", r"generation_config\.json is not a JSON object"),
        ("[" * 100_000, r"generation_config\.json is nested too deeply"),
        ('{"eos_token_id": 7, "eos_token_id": 8}', "'eos_token_id' occurs twice"),
    ):
        path.write_text(damaged)
        with pytest.raises(CheckpointError, match=message):
            read(tmp_path)
