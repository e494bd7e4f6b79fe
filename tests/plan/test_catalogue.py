"""Sizes of the catalogue's models against what is known of their files."""

import pytest

from trimaran.base.formats import WeightFormat
from trimaran.checkpoint.catalog import load_catalog
from trimaran.models.registry import build_program
from trimaran.plan.catalogue import catalogue_config, held_bytes
from trimaran.plan.weights import WeightRecipe, program_weights, weight_bytes


def count(name: str, *, mtp: bool = False) -> int:
    cfg = catalogue_config(name)
    assert cfg is not None
    return sum(count for _, count in program_weights(cfg, build_program(cfg), mtp=mtp))


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("smollm2", 134_515_008),
        ("gemma3-270m", 268_098_176),
        ("llama3.1-8b", 8_030_261_248),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_weights_are_as_many_as_in_the_files(name: str, weights: int) -> None:
    assert count(name) == weights


def test_glm_5_to_the_byte() -> None:
    """What the index files of GLM-5.1 and 5.2 in bf16 state, with the layer that predicts ahead."""
    assert count("glm-5.1", mtp=True) == 753_864_139_008
    cfg = catalogue_config("glm-5.2")
    assert cfg is not None
    assert weight_bytes(cfg, build_program(cfg), WeightRecipe.BF16, 1, mtp=True).total == 1_506_659_919_872


def test_bytes_by_format() -> None:
    sizes = held_bytes("smollm2")
    vectors = 61 * 576
    matrices = 134_515_008 - vectors
    assert sizes[WeightFormat.FP32] == 4 * 134_515_008
    assert sizes[WeightFormat.BF16] == 2 * matrices + 4 * vectors
    table = 49_152 * 576  # of fewer than 8 bits it would cost too much
    assert sizes[WeightFormat.INT8] == matrices // 32 * 34 + 4 * vectors
    assert sizes[WeightFormat.INT4Z] == (matrices - table) // 32 * 20 + table // 32 * 34 + 4 * vectors


def test_a_model_of_unknown_sizes_has_no_bytes() -> None:
    assert load_catalog()["ministral-3-8b"].shape is None
    assert held_bytes("ministral-3-8b") == {}


@pytest.mark.parametrize("name", [name for name, entry in load_catalog().items() if entry.shape])
def test_every_shape_makes_a_program(name: str) -> None:
    cfg = catalogue_config(name)
    assert cfg is not None
    assert len(build_program(cfg).weights) > cfg.layers
