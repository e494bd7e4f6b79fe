"""The streamed forward gives the logits that transformers computes, for every family and both kinds of files."""

from pathlib import Path

import numpy as np
import pytest
from tests.models.families import NAMES, golden, write_checkpoint
from tests.models.gguf_families import write_gguf

from trimaran.calibration.forward import Forward
from trimaran.calibration.weights import StreamedWeights
from trimaran.checkpoint import open_checkpoint
from trimaran.models.registry import build_program, read_config
from trimaran.quant.logical import logical_tensors

UNSAYABLE = {"mistral", "gemma3_vlm"}  # in GGUF's keys


def logits_of(path: Path, texts: list[list[int]]) -> np.ndarray:
    with open_checkpoint(path) as checkpoint:
        cfg = read_config(checkpoint)
        program = build_program(cfg)
        weights = StreamedWeights(logical_tensors(checkpoint), checkpoint.kind, cfg, program, checkpoint.release)
        return Forward(program, weights, texts).run(logits=True)


@pytest.mark.parametrize("name", NAMES)
def test_texts_side_by_side(name: str, tmp_path: Path) -> None:
    expected = golden(name)
    tokens = expected["tokens"].tolist()
    logits = logits_of(write_checkpoint(name, tmp_path / name), [tokens[:7], tokens])
    assert np.abs(logits[:7] - expected["logits"][:7]).max() <= 1e-4
    assert np.abs(logits[7:] - expected["logits"]).max() <= 1e-4


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNSAYABLE])
def test_gguf(name: str, tmp_path: Path) -> None:
    expected = golden(name)
    logits = logits_of(write_gguf(name, tmp_path / "model.gguf"), [expected["tokens"].tolist()])
    assert np.abs(logits - expected["logits"]).max() <= 1e-4
