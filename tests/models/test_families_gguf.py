"""Every architecture of GGUF that a family of ours has, against the logits that transformers computes."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.models.config_gguf import READERS
from trimaran.quant.convert import recast

from .families import NAMES, golden
from .gguf_families import listed, write_gguf
from .running import load, load_path, run

# What GGUF has no keys for: a window in the architecture llama, another scale of scores than Gemma's in most sizes.
UNSAYABLE = {"mistral", "gemma3_vlm"}
SAYABLE = [name for name in NAMES if name not in UNSAYABLE]


@pytest.mark.parametrize("name", SAYABLE)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    expected = golden(name)
    model = load_path(write_gguf(name, tmp_path / "model.gguf"), None)
    logits = run(model, "reference", expected["tokens"], (43,))
    assert np.abs(logits - expected["logits"]).max() <= 1e-4


@pytest.mark.parametrize("name", SAYABLE)
def test_the_file_means_what_the_hub_says(name: str, tmp_path: Path) -> None:
    """Sizes are those of the safetensors checkpoint; numbers, which the format holds as float32, are near them."""
    cfg, hub = load_path(write_gguf(name, tmp_path / "model.gguf"), None).cfg, load(name).cfg
    assert (cfg.norm_eps, cfg.scale) == pytest.approx((hub.norm_eps, hub.scale))
    assert (cfg.query_scale is None) == (hub.query_scale is None)
    assert (cfg.experts is None) == (hub.experts is None)
    if cfg.experts is not None and hub.experts is not None:
        assert replace(cfg.experts, factor=hub.experts.factor) == hub.experts
    near = {key: getattr(hub, key) for key in ("norm_eps", "scale", "query_scale", "experts")}
    elsewhere = {key: getattr(hub, key) for key in ("family", "rope", "bos_id", "eos_ids")}
    if cfg.mtp_layers == 0:  # the converter leaves them out of some
        elsewhere["mtp_layers"] = hub.mtp_layers
    assert replace(cfg, **near, **elsewhere) == hub


def test_every_architecture_is_among_them() -> None:
    assert {listed(name)["metadata"]["general.architecture"] for name in NAMES} == set(READERS)


@pytest.mark.parametrize("name", UNSAYABLE)
def test_others_load_and_run(name: str, tmp_path: Path) -> None:
    model = load_path(write_gguf(name, tmp_path / "model.gguf"), None)
    assert np.isfinite(run(model, "reference", golden(name)["tokens"], (43,))).all()


@pytest.mark.parametrize("name", ["ministral3", "deepseek_v3", "glm_moe_dsa", "qwen3_moe"])
def test_quantised_tensors_are_cut_as_floats_are(name: str, tmp_path: Path) -> None:
    """Permuted rows, experts in pieces and heads apart are the same of blocks as of the numbers that they hold."""
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = load_path(write_gguf(name, tmp_path / "blocks.gguf", kind), None)
    floats = load_path(write_gguf(name, tmp_path / "floats.gguf", kind, as_floats=True), None)
    assert sum(weight.fmt is WeightFormat.INT8 for weight in blocks.weights.values()) > len(blocks.weights) / 3
    for key, weight in blocks.weights.items():
        expected = floats.weights[key]
        if weight.fmt is WeightFormat.BF16:  # what no block format may hold is rounded once
            expected = recast(expected, WeightFormat.BF16)
        np.testing.assert_array_equal(dequantise(weight), dequantise(expected), key)
