"""int4 with calibration text: closer to the source, in the same layout, for dense models, experts and latents."""

from pathlib import Path

import numpy as np
import pytest
from tests.models.families import golden, write_checkpoint
from tests.models.running import load_path, run

from trimaran.base.formats import WeightFormat
from trimaran.checkpoint import open_checkpoint
from trimaran.compress.plan import Report
from trimaran.compress.recipe import Int4
from trimaran.compress.run import compress

TEXTS = [[np.random.default_rng(seed).integers(0, 128, 80).tolist() for seed in range(10)]]


def compressed(source: Path, folder: Path, texts: list[list[list[int]]]) -> Report:
    with open_checkpoint(source) as checkpoint:
        return compress(checkpoint, Int4(32), folder, texts=texts)


@pytest.mark.parametrize("name", ["llama3", "deepseek_v3"])
def test_it_is_closer_to_the_source_and_looks_the_same(name: str, tmp_path: Path) -> None:
    source = write_checkpoint(name, tmp_path / "source")
    plain, done = (compressed(source, tmp_path / f"{texts != []}", texts) for texts in ([], TEXTS))
    assert (done.matrices, done.bytes_after, done.kept) == (plain.matrices, plain.bytes_after, plain.kept)
    assert done.norm == pytest.approx(plain.norm)
    assert done.outputs_error < 0.85 * done.outputs_alone
    tokens = golden(name)["tokens"]
    exact, rounded, ours = (
        run(load_path(tmp_path / folder, WeightFormat.FP32), "reference", tokens, [len(tokens)])
        for folder in ("source", "False", "True")
    )
    assert np.square(ours - exact).sum() < 0.97 * np.square(rounded - exact).sum()
