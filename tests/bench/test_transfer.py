"""The benchmark of links between processes runs on a short prompt."""

import pytest

from trimaran.base.errors import ConfigError

from .scripts import load_script

transfer = load_script("transfer")


def test_a_line_for_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert transfer.main(["--tokens", "64", "--rounds", "1", "--transports", "shm", "tcp"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("0.8 MB in batches of 4 MiB")
    assert [line.split()[0] for line in lines[2:]] == ["memcpy", "loopback", "shm", "tcp", "tcp,"]
    assert all(float(line[17:25].replace(",", "")) > 0 for line in lines[2:])


def test_between_two_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        code = transfer.main(["--tokens", "64", "--rounds", "1", "--delay", "5", "--loss", "1"])
    except ConfigError as error:
        pytest.skip(str(error))
    lines = capfd.readouterr().out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines[2:]] == ["memcpy", "loopback", "tcp", "tcp,"]
    assert all(float(line.split()[-1].replace(",", "")) > 10_000 for line in lines[3:]), "there and back takes 10 ms"
