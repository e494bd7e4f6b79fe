import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from trimaran.checkpoint import cache
from trimaran.cli.models import models

app = typer.Typer()
app.command()(models)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")


def put(source: str) -> Path:
    directory = cache.staging(source)
    (directory / "m.gguf").write_bytes(b"x" * 3_000_000)
    return cache.publish(directory, source, [cache.FileRecord("m.gguf", "0" * 64, 3_000_000)], main="m.gguf").path


def rows() -> dict[str, dict[str, Any]]:
    result = CliRunner().invoke(app, ["--json"])
    assert result.exit_code == 0
    return {row["name"]: row for row in json.loads(result.stdout)}


def test_the_catalogue_is_listed_with_what_is_missing() -> None:
    row = rows()["smollm2"]
    assert row["path"] is None
    assert row["size"] == 98362432
    assert row["context"] == 8192
    assert row["licence"] == "Apache-2.0"
    assert row["tested"] == "real"
    assert row["decode"] == {"weights": "int4z", "cache": "int8"}
    row = rows()["glm-5.2"]
    assert (row["size"], row["tool_parser"], row["reasoning_parser"]) == (None, "glm47", "glm45")
    assert row["weight_bytes"]["bf16"] > 1.4e12


def test_what_was_pulled_otherwise_is_listed_too() -> None:
    path = put("hf:org/m#m.gguf")
    row = rows()["hf:org/m#m.gguf"]
    assert (row["path"], row["size"], row["licence"]) == (str(path), 3_000_000, None)


def test_the_table() -> None:
    put("hf:org/m#m.gguf")
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    (smollm2,) = [line for line in lines if line.startswith("smollm2")]
    assert "98.4 MB" in smollm2
    assert " no " in smollm2
    (glm,) = [line for line in lines if line.startswith("glm-5.2")]
    assert "GB int4" in glm
    (other,) = [line for line in lines if line.startswith("hf:org/m#m.gguf")]
    assert "3.0 MB" in other
