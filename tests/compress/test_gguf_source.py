"""A GGUF file comes out as the model that it was made from: names, rows of heads, norms, configuration."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.models.families import float_tensors, golden
from tests.models.gguf_families import write_gguf
from tests.models.running import load_path, run

from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.checkpoint import open_checkpoint
from trimaran.compress.plan import Report
from trimaran.compress.recipe import Int4
from trimaran.compress.run import compress
from trimaran.compress.source import read_source
from trimaran.models.names import text_name

FAMILIES = ("llama3", "qwen2", "qwen3", "gemma3_text", "qwen3_moe")
Q8, Q5, Q4 = (gguf.GGMLQuantizationType[name] for name in ("Q8_0", "Q5_0", "Q4_0"))


def compressed(source: Path, folder: Path) -> Report:
    with open_checkpoint(source) as checkpoint:
        return compress(checkpoint, Int4(32), folder)


@pytest.mark.parametrize("name", FAMILIES)
def test_tensors_are_those_of_the_hub(name: str, tmp_path: Path) -> None:
    hub = {text_name(key): values for key, values in float_tensors(name).items()}
    with open_checkpoint(write_gguf(name, tmp_path / "model.gguf")) as checkpoint:
        found = {tensor.name: tensor.open() for tensor in read_source(checkpoint).tensors}
        for key, stored in found.items():
            assert stored.shape == hub[key].shape, key
            values = stored.values(slice(None)).reshape(stored.shape)
            np.testing.assert_allclose(values, hub[key], rtol=0, atol=2e-7, err_msg=key)
            if values.ndim == 2:
                np.testing.assert_array_equal(stored.values(slice(3, 9)), values[3:9], err_msg=key)
    missing = {key for key in hub if key not in found}
    assert missing <= {"lm_head.weight"}


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_written_runs_as_the_file_does(name: str, tmp_path: Path) -> None:
    source = write_gguf(name, tmp_path / "model.gguf", Q8)
    report = compressed(source, tmp_path / "small")
    assert report.again == 0
    tokens = golden(name)["tokens"][:20]
    small, large = (load_path(path, WeightFormat.FP32) for path in (tmp_path / "small", source))
    ours, exact = (run(model, "reference", tokens, [20]) for model in (small, large))
    assert np.corrcoef(ours.ravel(), exact.ravel())[0, 1] > 0.9
    assert small.cfg.family == large.cfg.family


def test_few_bits_are_counted_and_refused_where_they_are_most(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"holds 100 % of these weights in 4 bits or fewer"):
        compressed(write_gguf("qwen3", tmp_path / "four.gguf", Q4), tmp_path / "small")
    assert compressed(write_gguf("qwen3", tmp_path / "five.gguf", Q5), tmp_path / "small").again == 0


def test_latent_attention_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="deepseek_v3 family cannot be compressed: give the safetensors model"):
        compressed(write_gguf("deepseek_v3", tmp_path / "model.gguf"), tmp_path / "small")
