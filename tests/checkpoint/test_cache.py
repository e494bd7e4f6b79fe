import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trimaran.base.errors import SourceError
from trimaran.checkpoint import cache, file_lock
from trimaran.checkpoint.cache import Record
from trimaran.checkpoint.file_record import MANIFEST, RECORD, FileRecord

SOURCE = "hf:org/m@v1"


def fill(source: str = SOURCE, *, main: str | None = "m.gguf", **files: bytes) -> cache.CachedModel:
    directory = cache.staging(source)
    contents = files or {"m.gguf": b"12345"}
    for name, data in contents.items():
        (directory / name).write_bytes(data)
    records = [FileRecord(name, "0" * 64, len(data)) for name, data in contents.items()]
    return cache.publish(directory, source, records, main=main, revision="c0ffee")


def test_what_is_published_is_found(cache_home: Path) -> None:
    assert cache.find(SOURCE) is None
    published = fill()
    found = cache.find(SOURCE)
    assert found == published
    assert found is not None
    assert found.path.read_bytes() == b"12345"
    assert found.path.is_relative_to(cache_home / "models")
    assert cache.find("hf:org/m") is None
    assert cache.find(SOURCE + "#m.gguf") is None


def test_the_record_is_readable_json(cache_home: Path) -> None:
    model = fill()
    record = json.loads((model.directory / "trimaran.json").read_text())
    date = datetime.fromisoformat(record.pop("date"))
    assert abs((datetime.now(UTC) - date).total_seconds()) < 3600
    assert record == {
        "source": SOURCE,
        "revision": "c0ffee",
        "main": "m.gguf",
        "files": [{"name": "m.gguf", "sha256": "0" * 64, "size": 5}],
    }


def test_a_model_without_a_main_file_is_its_directory(cache_home: Path) -> None:
    model = fill(main=None)
    assert model.path == model.directory
    assert model.record.size == 5


@pytest.mark.parametrize("damage", ["missing", "short", "no record", "other record", "bad record"])
def test_a_damaged_model_is_not_found_and_can_be_replaced(cache_home: Path, damage: str) -> None:
    model = fill()
    record = model.directory / cache.RECORD
    match damage:
        case "missing":
            model.path.unlink()
        case "short":
            model.path.write_bytes(b"123")
        case "no record":
            record.unlink()
        case "other record":
            record.write_text(record.read_text().replace("org/m", "org/n"))
        case "bad record":
            record.write_text("{")
    assert cache.find(SOURCE) is None
    fill()
    assert cache.find(SOURCE) is not None
    assert list((cache_home / "partial").iterdir()) == []


def test_publishing_leaves_strays_behind(cache_home: Path) -> None:
    (cache.staging(SOURCE) / "old.part").write_bytes(b"x")
    model = fill()
    assert sorted(file.name for file in model.directory.iterdir()) == ["m.gguf", RECORD, MANIFEST]


def test_the_list_holds_complete_models_by_source(cache_home: Path) -> None:
    assert cache.list_models() == []
    fill("hf:org/z")
    fill("hf:org/a")
    fill("hf:org/broken").path.unlink()
    (cache_home / "models" / "stray").mkdir()
    assert [model.record.source for model in cache.list_models()] == ["hf:org/a", "hf:org/z"]


def test_keys_are_readable_short_and_distinct(cache_home: Path) -> None:
    names = {cache.staging(f"https://host/{'x' * 300}/{index}.gguf").name for index in range(3)}
    assert len(names) == 3
    assert all(len(name) < 100 for name in names)
    assert cache.staging("pypi:a==1.0#b/c.gguf").name.startswith("pypi-a==1.0-")


def test_two_revisions_are_staged_apart(cache_home: Path) -> None:
    assert len({cache.staging(SOURCE), cache.staging(SOURCE, "a"), cache.staging(SOURCE, "b")}) == 3


def test_waiting_for_another_pull_ends(
    cache_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cache, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(file_lock, "_POLL_SECONDS", 0.01)
    with (
        cache.exclusive(SOURCE),
        pytest.raises(SourceError, match=f"has held .* pulling {SOURCE}"),
        cache.exclusive(SOURCE),
    ):
        pass
    assert capsys.readouterr().err == f"Waiting for another process, which is pulling {SOURCE}\n"
    with cache.exclusive(SOURCE), cache.exclusive("hf:org/another"):
        pass


def test_a_lock_is_free_again_after_an_error(cache_home: Path) -> None:
    with pytest.raises(RuntimeError), cache.exclusive(SOURCE):
        raise RuntimeError
    with cache.exclusive(SOURCE):
        pass


def test_a_record_counts_its_bytes() -> None:
    files = [FileRecord("a", "0" * 64, 2), FileRecord("b", "0" * 64, 3)]
    assert Record("s", None, None, files, "2026-01-01").size == 5
