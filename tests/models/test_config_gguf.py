"""GGUF metadata: every key that would change the result is read or refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint import CheckpointTensor, StorageFormat
from trimaran.kernels.program import RopeSpec, YarnScaling
from trimaran.models.config import ModelConfig
from trimaran.models.config_gguf import config_from_gguf
from trimaran.models.skipped import why_skipped

from .gguf_families import listed
from .tiny_files import InMemory

BASE: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a"] * 100,
    "tokenizer.ggml.eos_token_id": 2,
}


def read(
    *names: str, drop: str | None = None, factors: bytes | None = None, changes: dict[str, Any] | None = None
) -> ModelConfig:
    metadata = {key: value for key, value in (BASE | (changes or {})).items() if key != drop}
    content = {name: CheckpointTensor(name, (1,), StorageFormat.F32, np.zeros((1, 4), np.uint8)) for name in names}
    if factors is not None:
        data = np.frombuffer(factors, np.uint8)[None]
        content["rope_freqs.weight"] = CheckpointTensor("rope_freqs.weight", (8,), StorageFormat.F32, data)
    return config_from_gguf(InMemory("gguf", metadata, Path("/nonexistent"), content), "llama")


def test_what_the_format_lets_files_leave_out() -> None:
    cfg = read()
    assert (cfg.vocab, cfg.kv_heads, cfg.head_dim) == (100, 4, 16)
    assert cfg.rope == RopeSpec(10000.0, 16)
    assert (cfg.tied, cfg.attention_bias, cfg.bos_id, cfg.eos_ids) == (True, False, None, frozenset({2}))


def test_what_files_usually_say() -> None:
    more = {
        "llama.vocab_size": 104,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 32,
        "llama.attention.value_length": 32,
        "llama.rope.dimension_count": 32,
        "llama.rope.freq_base": 500000.0,
        "llama.rope.scaling.type": "none",
        "llama.expert_count": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.eom_token_id": 6,
    }
    cfg = read("output.weight", "blk.0.attn_q.bias", changes=more)
    assert (cfg.vocab, cfg.kv_heads, cfg.head_dim) == (104, 2, 32)
    assert cfg.rope == RopeSpec(500000.0, 32)
    assert (cfg.tied, cfg.attention_bias, cfg.bos_id, cfg.eos_ids) == (False, True, 1, frozenset({2, 5, 6}))


def test_rope_factors_are_read_from_their_tensor() -> None:
    factors = np.array([1, 1, 1, 2, 4, 8, 8, 8], "<f4")
    assert read(factors=factors.tobytes()).rope.factors == (1, 1, 1, 2, 4, 8, 8, 8)
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight must hold positive"):
        read(factors=(factors * 0).tobytes())
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight holds 4 factors, not 8"):
        read(factors=factors[:4].tobytes())
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight must hold positive"):
        read(factors=(factors * np.float32("inf")).tobytes())
    half = CheckpointTensor("rope_freqs.weight", (1,), StorageFormat.F16, np.zeros((1, 2), np.uint8))
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight must hold positive F32 numbers, not F16"):
        config_from_gguf(InMemory("gguf", BASE, Path("/nonexistent"), {half.name: half}), "llama")


@pytest.mark.parametrize("tokens", [7, "abc", []])
def test_a_vocabulary_that_is_no_list_counts_no_tokens(tokens: Any) -> None:
    with pytest.raises(CheckpointError, match=r"has no llama\.vocab_size"):
        read(changes={"tokenizer.ggml.tokens": tokens})


@pytest.mark.parametrize("key", [key for key in BASE if key.startswith("llama.")] + ["tokenizer.ggml.tokens"])
def test_a_missing_key_is_named(key: str) -> None:
    named = "llama.vocab_size" if key == "tokenizer.ggml.tokens" else key
    with pytest.raises(CheckpointError, match=f"the GGUF file has no {named}"):
        read(drop=key)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "yarn"),
        ("llama.rope.dimension_count", 8),
        ("llama.attention.value_length", 8),
        ("llama.expert_count", 8),
        ("llama.attention.sliding_window", 4096),
        ("llama.logit_scale", 0.5),
    ],
)
def test_what_the_family_does_not_implement_is_named(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=key):
        read(changes={key: value})


def test_sizes_that_differ_between_layers() -> None:
    with pytest.raises(CheckpointError, match=r"feed_forward_length must be an integer, not \[96, 128\]"):
        read(changes={"llama.feed_forward_length": [96, 128]})


def of(name: str, *, drop: str | None = None, without: str = "nothing", **changes: Any) -> ModelConfig:
    """What the metadata that llama.cpp's converter writes of a tiny checkpoint means after ``changes``."""
    golden = listed(name)
    metadata, arch = golden["metadata"], golden["metadata"]["general.architecture"]
    metadata.setdefault(f"{arch}.vocab_size", 128)
    found = {key: value for key, value in metadata.items() if key != f"{arch}.{drop}"}
    found |= {f"{arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
    content = {
        key: CheckpointTensor(key, (1,), StorageFormat.F32, np.ones((1, 4), np.uint8))
        for key in golden["tensors"]
        if without not in key
    }
    return config_from_gguf(InMemory("gguf", found, Path("/nonexistent"), content), arch)


def test_the_largest_gemma_scales_scores_by_another_width() -> None:
    assert of("gemma3_text").scale == pytest.approx(32**-0.5)
    assert of("gemma3_text", block_count=62).scale == pytest.approx((64 / 4) ** -0.5)


def test_every_sixth_layer_of_gemma_sees_all_tokens_unless_the_file_says_otherwise() -> None:
    assert of("gemma3_text").windowed == {0, 1, 2, 3, 4, 6}
    assert of("gemma3_text", attention__sliding_window_pattern=2).windowed == {0, 2, 4, 6}
    everything = of("gemma3_text", drop="attention.sliding_window")
    assert (everything.window, everything.windowed, everything.local_rope) == (None, frozenset(), None)


def test_what_scores_are_where_files_do_not_say() -> None:
    def scoring(name: str, **changes: Any) -> str:
        experts = of(name, **changes).experts
        assert experts is not None
        return experts.scoring

    assert scoring("qwen3_moe") == "softmax"
    assert scoring("glm4_moe", drop="expert_gating_func") == "sigmoid"
    assert scoring("deepseek_v3", drop="expert_gating_func") == "sigmoid"  # it has biases of experts
    assert scoring("deepseek_v3", drop="expert_gating_func", without="exp_probs_b") == "softmax"
    with pytest.raises(UnsupportedError, match="expert_gating_func to 3"):
        of("glm4_moe", expert_gating_func=3)


def test_layers_with_an_indexer_are_those_listed_or_those_that_have_one() -> None:
    def layers(name: str, **changes: Any) -> frozenset[int]:
        indexer = of(name, **changes).indexer
        assert indexer is not None
        return indexer.layers

    assert layers("glm_moe_dsa") == layers("glm_moe_dsa", drop="attention.indexer.types") == {0, 1, 2, 6}
    assert layers("glm_moe_dsa", attention__indexer__types=[True] + [False] * 6) == {0}
    assert layers("deepseek_v32") == {0, 1, 2, 3}


def test_an_indexer_that_is_not_used_is_skipped() -> None:
    cfg = of("glm_moe_dsa")
    for name in ("blk.3.indexer.proj.weight", "model.layers.3.self_attn.indexer.wk.weight"):
        assert why_skipped(name, cfg) == "indexers of layers that use another's choice"
    assert why_skipped("blk.2.indexer.proj.weight", cfg) is None
    assert why_skipped("blk.7.nextn.eh_proj.weight", cfg) == "layers that predict further tokens"


def test_yarn_with_and_without_a_multiplier() -> None:
    assert of("deepseek_v3").scale == pytest.approx(48**-0.5 * (0.1 * math.log(4) + 1) ** 2)
    assert of("deepseek_v3", drop="rope.scaling.yarn_log_multiplier").scale == pytest.approx(48**-0.5)
    with_one, without = of("qwen2", rope__scaling__yarn_log_multiplier=1.0).rope, of("qwen2").rope
    assert isinstance(with_one.scaling, YarnScaling)
    assert isinstance(without.scaling, YarnScaling)
    assert with_one.scaling.magnitude == 1
    assert without.scaling.magnitude == pytest.approx(0.1 * math.log(4) + 1)
    with pytest.raises(UnsupportedError, match=r"rope\.scaling\.type to 'longrope'"):
        of("qwen2", rope__scaling__type="longrope")


def test_latent_attention_that_is_not_cut_into_keys_and_values() -> None:
    with pytest.raises(CheckpointError, match=r"has no deepseek2\.attention\.key_length_mla"):
        of("deepseek_v3", drop="attention.key_length_mla")


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("deepseek_v3", "deepseek2.block_count", 1 << 30, "is not a number of layers"),
        ("deepseek_v3", "deepseek2.expert_gating_func", -1, "expert_gating_func to -1"),
        ("deepseek_v3", "deepseek2.attention.key_length_mla", 0, "key_length_mla must be at least 1"),
        ("gemma3_text", "gemma3.attention.sliding_window_pattern", 0, "sliding_window_pattern must be at least 1"),
    ],
)
def test_numbers_that_no_model_has_are_named(name: str, key: str, value: Any, message: str) -> None:
    metadata = listed(name)["metadata"] | {key: value}
    architecture = metadata["general.architecture"]
    metadata.setdefault(f"{architecture}.vocab_size", 100)
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        config_from_gguf(InMemory("gguf", metadata, Path("/nonexistent"), {}), architecture)


def test_dense_layers_are_no_more_than_layers() -> None:
    metadata = listed("deepseek_v3")["metadata"] | {"deepseek2.leading_dense_block_count": (1 << 31) - 1}
    cfg = config_from_gguf(InMemory("gguf", metadata, Path("/nonexistent"), {}), "deepseek2")
    assert cfg.experts is not None
    assert cfg.experts.dense == frozenset(range(4))
