"""The benchmark of latent attention runs a model of its own making, dense in the tokens it sees and sparse."""

import pytest

from .scripts import load_script

latent = load_script("latent")


def test_a_line_for_each_context(capsys: pytest.CaptureFixture[str]) -> None:
    latent.main(["tiny", "--contexts", "1", "2100", "--rows", "3", "--steps", "1", "--threads", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["context 1, 3 rows", "context 2100, 3 rows"]
