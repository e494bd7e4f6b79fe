import io
import sys

import pytest

from trimaran.checkpoint.progress import megabytes, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with progress("model.gguf") as report:
        report(1_000_000, 2_000_000)
        report(2_000_000, 2_000_000)
    assert "model.gguf" in terminal.getvalue()
    assert "2.0/2.0 MB" in terminal.getvalue()


def test_a_failed_download_is_not_said_to_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with progress("m") as report:
            report(0, None)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()
    assert capsys.readouterr().err == "Downloading m\n"


def test_sizes() -> None:
    assert [megabytes(size) for size in (0, 98_362_432, 5_400_000_000)] == ["0.0 MB", "98.4 MB", "5.40 GB"]
