"""Layers for multi-token prediction: skipped when a model is loaded, and yet decoder layers that our blocks can run.

Such a layer predicts token i + 2 from the model's state at token i and the embedding of token i + 1:
``decoder_layer(eh_proj([enorm(embedding), hnorm(state)]))``, then a norm of its own and the model's output matrix. The
state is what the output matrix sees. Source: the technical report of DeepSeek-V3, section 2.2, and transformers.
"""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from trimaran.base.formats import WeightFormat
from trimaran.kernels.program import Linear, Logits
from trimaran.kernels.reference_ops import linear, rms_norm
from trimaran.kernels.weights import Weight

from .families import FAMILIES, NAMES, float_tensors, golden, tensor_specs, write_checkpoint, write_safetensors
from .random_values import TensorSpec
from .running import Model, load, load_path, run
from .test_families import CHUNKS

WITH_GOLDEN = [name for name in NAMES if "next_logits" in golden(name)]
WITH_LAYER = [name for name in NAMES if any(".eh_proj." in spec.name for spec in tensor_specs(name))]


@pytest.mark.parametrize("name", WITH_LAYER)
def test_they_are_skipped_with_a_line(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        model = load_path(write_checkpoint(name, tmp_path), WeightFormat.FP32)
    assert model.cfg.mtp_layers == 1
    assert "skipped layers that predict further tokens" in caplog.text
    assert not any(f"layers.{model.cfg.layers}." in key for key in model.weights)


@pytest.mark.parametrize("name", WITH_GOLDEN)
def test_they_predict_what_transformers_predicts(name: str, tmp_path: Path) -> None:
    arrays, model = golden(name), load(name)
    states = states_of(model, arrays["tokens"])[:-1]
    tensors = float_tensors(name)
    prefix = f"model.layers.{model.cfg.layers}."
    embeddings = tensors["model.embed_tokens.weight"][arrays["tokens"][1:]]
    parts = [
        rms_norm(rows, tensors[f"{prefix}{norm}.weight"], model.cfg.norm_eps)
        for norm, rows in (("enorm", embeddings), ("hnorm", states))
    ]
    inputs = linear(np.concatenate(parts, axis=1), tensors[f"{prefix}eh_proj.weight"], None)
    alone = load_path(write_layer(name, prefix, inputs, tmp_path), WeightFormat.FP32)
    logits = run(alone, "reference", np.arange(len(inputs), dtype=np.int32), (len(inputs),))
    assert np.abs(logits - arrays["next_logits"]).max() <= 1e-4


def states_of(model: Model, tokens: np.ndarray) -> np.ndarray:
    """What the output matrix sees of each token: a unit matrix in its place shows it in the first columns."""
    hidden, vocab = model.cfg.hidden, model.cfg.vocab
    unit = np.eye(vocab, hidden, dtype=np.float32)
    *_, last, end = model.program.ops
    assert isinstance(last, Linear)
    assert isinstance(end, Logits)
    weights = {**model.weights, last.weight: Weight(last.weight, WeightFormat.FP32, unit.shape, unit)}
    return run(Model(model.cfg, model.program, weights), "reference", tokens, CHUNKS["whole"])[:, :hidden]


def write_layer(name: str, prefix: str, inputs: np.ndarray, folder: Path) -> Path:
    """A model of that layer alone, in which ``inputs`` are the embeddings of the tokens 0, 1, 2 and so on."""
    config = json.loads((FAMILIES / name / "config.json").read_text("utf-8"))
    config |= {"num_hidden_layers": 1, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    found = {}
    for key, values in float_tensors(name).items():
        inner = key.removeprefix(prefix)
        if key == "lm_head.weight":
            found[key] = values
        elif inner == "shared_head.norm.weight":
            found["model.norm.weight"] = values
        elif inner != key and not inner.startswith(("enorm", "hnorm", "eh_proj", "embed_tokens", "shared_head")):
            found[f"model.layers.0.{inner}"] = values
    embeddings = np.zeros_like(found["lm_head.weight"])
    embeddings[: len(inputs)] = inputs
    found["model.embed_tokens.weight"] = embeddings
    specs = ((TensorSpec(key, "F32", values.shape), values) for key, values in found.items())
    write_safetensors(folder / "model.safetensors", specs)
    return folder
