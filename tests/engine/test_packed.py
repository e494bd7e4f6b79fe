"""The second start takes packed weights: the same tokens, and nothing that was tampered with."""

import os
import time
from pathlib import Path

import pytest

from trimaran.base.errors import IntegrityError
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.base.messages import Submit
from trimaran.checkpoint import packs
from trimaran.checkpoint.verify import Verification, write_model_manifest
from trimaran.engine import packed
from trimaran.engine.config import EngineConfig
from trimaran.engine.load import load_engine

from .driving import greedy, run
from .tiny_model import write_model

REQUEST = Submit("r", [5, 17, 3, 60, 8], greedy(20, ignore_eos=True))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIMARAN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(packs, "FREE_PART", 1 << 40)
    return tmp_path / "home"


@pytest.fixture
def model(home: Path, tmp_path: Path) -> Path:
    folder = write_model(tmp_path / "tiny")
    write_model_manifest(folder)
    return folder


def start(model: Path, **options) -> tuple[list[int], bool]:
    """Tokens of a request, and whether weights had been packed before."""
    given = {"weight_format": WeightFormat.INT8, "packed_cache_bytes": 1 << 24, "threads": 1, **options}
    engine = load_engine(EngineConfig(model=str(model), **given))
    try:
        tokens = run(engine, REQUEST)["r"].ids
        assert {"map", "pack"} & set(engine.info.phases)
        assert list(engine.info.phases)[-1] == "warm-up"
        return tokens, "pack" not in engine.info.phases
    finally:
        engine.close()


def weights_files(home: Path) -> list[Path]:
    return sorted((home / "packs").glob("*/weights.bin"))


def flip(path: Path, at: int = -100) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("weight_format", [None, *WeightFormat])
def test_the_second_start_gives_the_same_tokens(model: Path, weight_format: WeightFormat | None) -> None:
    first, packed_before = start(model, weight_format=weight_format)
    assert not packed_before
    assert start(model, weight_format=weight_format) == (first, True)
    assert start(model, weight_format=weight_format, verify=Verification.NEVER) == (first, True)
    assert start(model, weight_format=weight_format, verify=Verification.ALWAYS) == (first, True)


def test_what_is_packed_otherwise_has_a_pack_of_its_own(model: Path, home: Path) -> None:
    for options in (
        {},
        {"weight_format": WeightFormat.INT4},
        {"activations": ActivationFormat.FP32},
    ):
        assert not start(model, **options)[1]
    assert len(weights_files(home)) == 3
    assert start(model, kv_format=KVFormat.FP32, max_model_len=64, threads=2)[1], "pages are none of its business"


def test_a_pack_of_another_build_or_instruction_set_is_not_used(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model)
    monkeypatch.setenv("TRIMARAN_ISA", "generic")
    assert not start(model)[1]
    assert len(weights_files(home)) == 2
    monkeypatch.setattr(packed, "build_digest", lambda: b"another")
    assert not start(model)[1]
    assert len(weights_files(home)) == 2, "the old build's has gone"


def test_a_flipped_bit_in_the_pack_is_found_and_mended(
    model: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = start(model)
    [weights] = weights_files(home)
    good = weights.read_bytes()
    for at in (0, len(good) // 2, -1):
        flip(weights, at)
        caplog.clear()
        assert start(model) == (first, False)
        assert "is not what was written" in caplog.text
        assert weights.read_bytes() == good
        assert start(model) == (first, True)


def test_a_flipped_bit_in_the_note_is_found(model: Path, home: Path) -> None:
    first, _ = start(model)
    note = weights_files(home)[0].with_name("pack.json")
    flip(note, len(note.read_bytes()) // 2)
    assert start(model) == (first, False)
    assert start(model) == (first, True)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_model_that_was_tampered_with_is_refused_as_ever(model: Path, name: str) -> None:
    start(model)
    flip(model / name)
    with pytest.raises(IntegrityError, match=name):
        start(model)
    (model / name).unlink()
    with pytest.raises(IntegrityError, match=f"{name} is missing"):
        start(model)


def test_an_extra_file_is_refused_as_ever(model: Path) -> None:
    start(model)
    (model / "extra").touch()
    with pytest.raises(IntegrityError, match="extra"):
        start(model)


def test_files_are_hashed_again_where_they_were_written_to(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    original = packed.hash_files

    def counted(folder: Path, names: list[str]):
        hashed.extend(names)
        return original(folder, names)

    monkeypatch.setattr(packed, "hash_files", counted)
    start(model)
    assert start(model)[1]
    assert hashed == []
    os.utime(model / "model.safetensors")
    assert start(model)[1]
    assert hashed == ["model.safetensors"]
    assert start(model)[1]
    assert hashed == ["model.safetensors"], "its new state is known now"
    assert start(model, verify=Verification.ALWAYS)[1]
    assert sorted(hashed) == ["config.json", "model.safetensors", "model.safetensors"]


def test_without_a_manifest_the_file_system_tells(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "tiny")
    start(folder)
    assert weights_files(home) == [], "so new that a write that follows could not be told"
    monkeypatch.setattr("trimaran.checkpoint.file_state.SETTLED_SECONDS", 0.0)
    first, _ = start(folder)
    assert start(folder) == (first, True)
    other = write_model(tmp_path / "other", seed=1)
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    assert start(folder) == (start(other, packed_cache_bytes=0)[0], False)
    assert len(weights_files(home)) == 1, "what was packed of the old file has gone"


def test_files_that_change_while_they_are_read_are_not_kept(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "tiny")
    monkeypatch.setattr("trimaran.checkpoint.file_state.SETTLED_SECONDS", 0.0)
    original = packed.PackKeeper.find

    def write_meanwhile(self: packed.PackKeeper):
        os.utime(folder / "config.json")
        return original(self)

    monkeypatch.setattr(packed.PackKeeper, "find", write_meanwhile)
    start(folder)
    assert weights_files(home) == []


@pytest.mark.parametrize(
    "options",
    [
        {"packed_cache_bytes": 0},
        {"packed_cache_bytes": 1000},
        {"verify": Verification.NEVER},
        {"executor": "reference"},
    ],
)
def test_nothing_is_kept(model: Path, home: Path, options) -> None:
    engine = load_engine(EngineConfig(model=str(model), **{"packed_cache_bytes": 1 << 24, "threads": 1, **options}))
    engine.close()
    assert not (home / "packs").exists() or weights_files(home) == []


def test_the_environment_says_how_much_may_be_kept(model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_PACKED_CACHE_BYTES", "16M")
    start(model, packed_cache_bytes=None)
    assert start(model, packed_cache_bytes=None)[1]
    monkeypatch.setenv("TRIMARAN_PACKED_CACHE_BYTES", "0")
    assert not start(model, packed_cache_bytes=None)[1]


def test_closing_an_engine_does_not_wait_for_a_slow_disk(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "GRACE_SECONDS", 0.05)

    def slow(name, replaces, weights, about, limit, stopped):
        while not stopped():
            time.sleep(0.01)
        return False

    monkeypatch.setattr(packed, "write_pack", slow)
    start(model)
    assert not (home / "packs").exists()
