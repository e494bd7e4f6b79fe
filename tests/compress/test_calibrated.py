"""Formats that compensate, with calibration text: closer to the source, for dense models, experts and latents."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.calibration.test_forward import logits_of
from tests.models.families import write_checkpoint

from trimaran.base.errors import ConfigError
from trimaran.checkpoint import open_checkpoint
from trimaran.compress.codebook import Codebook
from trimaran.compress.plan import Report
from trimaran.compress.recipe import CompensatingRecipe, Int4
from trimaran.compress.run import compress

TEXTS = [[np.random.default_rng(seed).integers(0, 128, 80).tolist() for seed in range(10)]]
FRESH = [np.random.default_rng(100 + seed).integers(0, 128, 80).tolist() for seed in range(8)]


def compressed(source: Path, recipe: CompensatingRecipe, folder: Path, texts: list[list[list[int]]]) -> Report:
    with open_checkpoint(source) as checkpoint:
        return compress(checkpoint, recipe, folder, texts=texts)


@pytest.mark.parametrize(("recipe", "most"), [(Int4(32), 0.75), (Codebook(4), 0.82), (Codebook(3, 1), 0.8)], ids=repr)
@pytest.mark.parametrize("name", ["llama3", "deepseek_v3"])
def test_it_is_closer_to_the_source_and_looks_the_same(
    name: str, recipe: CompensatingRecipe, most: float, tmp_path: Path
) -> None:
    source = write_checkpoint(name, tmp_path / "source")
    plain, done = (compressed(source, recipe, tmp_path / f"{texts != []}", texts) for texts in ([], TEXTS))
    assert (done.matrices, done.bytes_after, done.kept) == (plain.matrices, plain.bytes_after, plain.kept)
    assert done.norm == pytest.approx(plain.norm)
    assert done.outputs_error < 0.98 * done.outputs_alone  # both with what the matrices before have lost
    exact, rounded, ours = (logits_of(tmp_path / folder, FRESH) for folder in ("source", "False", "True"))
    assert np.square(ours - exact).sum() < most * np.square(rounded - exact).sum()


def test_parts_that_are_in_memory_one_at_a_time_change_next_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint("gemma3_text", tmp_path / "source")
    compressed(source, Int4(32), tmp_path / "once", TEXTS)
    monkeypatch.setattr("trimaran.compress.calibrated._PART", 1)
    monkeypatch.setattr("trimaran.compress.inputs._MOST_HELD_OUT", 100)
    done = compressed(source, Int4(32), tmp_path / "parts", TEXTS)
    exact, once, parts = (logits_of(tmp_path / folder, FRESH) for folder in ("source", "once", "parts"))
    assert done.unseen == 0
    assert np.square(parts - exact).sum() == pytest.approx(np.square(once - exact).sum(), rel=0.1)
    assert [path.name for path in (tmp_path / "parts").iterdir()] == [p.name for p in (tmp_path / "once").iterdir()]


def test_a_disk_without_room_for_activations_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_checkpoint("llama3", tmp_path / "source")
    plain = compressed(source, Int4(32), tmp_path / "plain", [])
    usage = SimpleNamespace(free=plain.bytes_after + 1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(ConfigError, match="give less text with --calibrate"):
        compressed(source, Int4(32), tmp_path / "small", TEXTS)
    assert not (tmp_path / "small").exists()
