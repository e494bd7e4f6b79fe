"""``trimaran compress`` as a user types it."""

import re
from pathlib import Path

import pytest
from tests.models.families import write_checkpoint
from typer.testing import CliRunner, Result

from trimaran.cli.app import app


@pytest.fixture
def source(tmp_path: Path) -> str:
    return str(write_checkpoint("llama3", tmp_path / "source"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compress", *arguments])


def test_one_folder_and_what_it_cost(source: str, tmp_path: Path) -> None:
    done = run(source, "--group", "64", "-o", str(tmp_path / "small"))
    assert done.exit_code == 0, done.stderr
    assert "18 matrices compressed" in done.stdout
    assert "if rounded to nearest" in done.stdout
    assert "not compressed: 3 tensors, 0.0 MB: inputs that groups do not divide" in done.stdout
    assert f"Compressing to {tmp_path / 'small'}" in done.stderr
    assert (tmp_path / "small" / "model.safetensors").is_file()


def test_a_pair(source: str, tmp_path: Path) -> None:
    done = run(source, "--pair", "-o", str(tmp_path / "pair"))
    assert done.exit_code == 0, done.stderr
    assert {path.name for path in (tmp_path / "pair").iterdir()} == {"fp8", "int4"}
    again = run(source, "--pair", "-o", str(tmp_path / "pair"))
    assert again.exit_code == 2
    assert "pair exists already; name a new folder" in again.stderr


def test_other_formats_and_gguf_files_of_four_bits_are_refused(source: str, tmp_path: Path, smollm2: Path) -> None:
    assert (
        "--format 'int3' is none of fp8, int4, codebook4, codebook3"
        in run(source, "--format", "int3", "-o", str(tmp_path / "a")).stderr
    )
    done = run(str(smollm2), "-o", str(tmp_path / "a"))
    assert done.exit_code == 1
    assert "holds 100 % of these weights in 4 bits or fewer" in done.stderr
    assert not (tmp_path / "a").exists()


class Bytes:
    """A tokenizer of 128 ids."""

    def encode(self, text: str) -> list[int]:
        return [byte % 128 for byte in text.encode()]

    def encode_prompt(self, text: str) -> list[int]:
        return [1, *self.encode(text)]


def test_codebooks_with_calibration(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimaran.text.tokenizer.open_tokenizer", lambda _: Bytes())
    text = tmp_path / "text.txt"
    text.write_text("What is read often is rounded little. " * 30)
    plain = run(source, "--format", "codebook4", "-o", str(tmp_path / "plain"))
    done = run(source, "--format", "codebook4", "--calibrate", str(text), "-o", str(tmp_path / "calibrated"))
    assert plain.exit_code == done.exit_code == 0, done.stderr
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "calibrated")]
    assert len(weights[0]) == len(weights[1])
    assert weights[0] != weights[1]
    text.write_text("short")
    short = run(source, "--format", "codebook4", "--calibrate", str(text), "-o", str(tmp_path / "short"))
    assert "text.txt has 5 tokens; give at least 100" in short.stderr
    missing = run(source, "--format", "codebook4", "--calibrate", "nowhere.txt", "-o", str(tmp_path / "short"))
    assert "--calibrate nowhere.txt: cannot be read as text" in missing.stderr


@pytest.mark.parametrize(
    ("flag", "formats"),
    [
        (("--outliers", "1", "--pair"), "codebook4 and codebook3"),
        (("--outliers", "1", "--format", "int4"), "codebook4 and codebook3"),
        (("--calibrate", "text.txt", "--format", "fp8"), "int4, codebook4 and codebook3"),
    ],
)
def test_flags_of_some_formats_are_refused_elsewhere(flag: tuple[str, ...], formats: str, source: str) -> None:
    done = run(source, *flag, "-o", "nowhere")
    assert done.exit_code == 2
    assert f"{flag[0]} is for --format {formats}" in done.stderr


def test_int4_with_two_files_of_text(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimaran.text.tokenizer.open_tokenizer", lambda _: Bytes())
    files = []
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"Of {name} file with as many words as needed. " * 20)
        files += ["--calibrate", str(tmp_path / name)]
    done = run(source, "--pair", *files, "-o", str(tmp_path / "small"))
    assert done.exit_code == 0, done.stderr
    off, alone = map(float, re.findall(r"outputs of matrices: (\S+) off for held-out text; (\S+) if", done.stdout)[0])
    assert 0 < off < alone
