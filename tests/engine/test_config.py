import dataclasses

import pytest

from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.engine.config import EngineConfig
from trimaran.kernels.null import NullModel


def test_json_round_trip():
    config = EngineConfig(
        model="m.gguf", weight_format=WeightFormat.INT4Z, kv_format=KVFormat.FP32, null=NullModel(step_seconds=0.5)
    )
    assert EngineConfig.from_json(config.to_json()) == config
    assert EngineConfig.from_json({}) == EngineConfig()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_num_sequences": 3}, "max_num_sequences"),
        ({"max_num_seqs": "many"}, "max_num_seqs"),
        ({"kv_format": "fp7"}, "kv_format"),
        ({"null": {"step_seconds": "long"}}, "step_seconds"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"seed": -1}, "seed"),
        ({"page_size": 24}, "page_size"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 63}, "max_num_batched_tokens"),
        ({"null": {"sleep": 1}}, "sleep"),
    ],
)
def test_a_wrong_option_is_named(values, named):
    with pytest.raises(ConfigError, match=named):
        EngineConfig.from_json(values)


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().seed = 1  # type: ignore[misc]
