"""The benchmark of links between processes runs on a short prompt."""

import pytest

from .scripts import load_script

transfer = load_script("transfer")


def test_a_line_for_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert transfer.main(["--tokens", "64", "--rounds", "1", "--transports", "shm", "tcp"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("0.8 MB in batches of 4 MiB")
    assert [line.split()[0] for line in lines[2:]] == ["memcpy", "loopback", "shm", "tcp", "tcp,"]
    assert all(float(line[17:25].replace(",", "")) > 0 for line in lines[2:])
