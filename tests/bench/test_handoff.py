"""The benchmark of handing a prompt over runs on a model of a few kilobytes."""

from pathlib import Path

import pytest

from engine.tiny_model import write_model
from trimaran.base.formats import KVFormat

from .scripts import load_script

handoff = load_script("handoff")


def test_a_line_for_each_pair_of_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert handoff.main([str(write_model(tmp_path / "model")), "--tokens", "100", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("prefill of 100 tokens")
    pairs = [tuple(line.split()[:2]) for line in lines[3:]]
    formats = [fmt.value for fmt in KVFormat if not fmt.static]
    assert pairs == [(a, b) for a in formats for b in formats]
