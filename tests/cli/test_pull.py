from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from trimaran.base.errors import CheckpointError, OfflineError, SourceError
from trimaran.cli.pull import pull

app = typer.Typer()
app.command()(pull)


def test_it_prints_the_path_and_nothing_else(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    result = CliRunner().invoke(app, [str(model)])
    assert result.exit_code == 0
    assert result.stdout == f"{model}\n"


def test_a_path_to_no_model_fails(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("hello")
    for path in (tmp_path, tmp_path / "README.md"):
        result = CliRunner().invoke(app, [str(path)])
        assert isinstance(result.exception, CheckpointError)
        assert ".gguf" in str(result.exception)
        assert ".safetensors" in str(result.exception)
        assert result.stdout == ""


def test_offline_without_the_model_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["smollm2", "--offline"])
    assert isinstance(result.exception, OfflineError)
    assert result.stdout == ""


def test_an_unknown_model_fails() -> None:
    assert isinstance(CliRunner().invoke(app, ["no-such-model"]).exception, SourceError)


def test_the_help_shows_sources_and_examples() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    for part in ("pypi:NAME==VERSION#FILE", "hf:ORG/NAME", "https://HOST", "trimaran pull smollm2", "--offline"):
        assert part in text
