"""Counts of weights against what is known of the files."""

import pytest

from trimaran.base.formats import WeightFormat
from trimaran.checkpoint.catalog import load_catalog
from trimaran.checkpoint.catalog_shape import Weights


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("smollm2", 134_515_008),
        ("gemma3-270m", 268_098_176),
        ("llama3.1-8b", 8_030_261_248),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_weights_are_as_many_as_in_the_files(name: str, count: int) -> None:
    shape = load_catalog()[name].shape
    assert shape is not None
    assert shape.weights().count == count


def test_glm_5_to_the_byte() -> None:
    """What the index files of GLM-5.1 and 5.2 in bf16 state, with the layer that predicts ahead; routers' biases are
    fp32."""
    five_1, five_2 = (load_catalog()[name].shape for name in ("glm-5.1", "glm-5.2"))
    assert five_1 is not None
    assert five_2 is not None
    assert five_1.weights(mtp=True).count == 753_864_139_008
    assert 2 * five_2.weights(mtp=True).count + 2 * (75 + 1) * 256 == 1_506_659_919_872


def test_bytes_by_format() -> None:
    weights = Weights(matrices=320, vectors=7)
    assert {fmt.value: weights.bytes_in(fmt) for fmt in WeightFormat} == {
        "fp32": 1280 + 28,
        "bf16": 640 + 28,
        "int8": 340 + 28,
        "int4": 180 + 28,
        "int4z": 200 + 28,
    }


def test_a_model_of_unknown_sizes_has_no_bytes() -> None:
    entry = load_catalog()["ministral-3-8b"]
    assert entry.shape is None
    assert entry.weight_bytes == {}
