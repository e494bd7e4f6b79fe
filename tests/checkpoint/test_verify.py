"""Tampering of every kind is found before anything of the model is used, and the file is named."""

import hashlib
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from models.families import write_checkpoint
from trimaran.base.errors import CheckpointError, ConfigError, IntegrityError
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.file_record import MANIFEST, SIGNATURE
from trimaran.checkpoint.private_file import RANGE, PrivateFile
from trimaran.checkpoint.signature import sign_manifest
from trimaran.checkpoint.verify import Verification, model_files, verify_model_integrity, write_model_manifest
from trimaran.engine.config import EngineConfig
from trimaran.engine.load import load_engine


@pytest.fixture
def model(tmp_path) -> Path:
    """A model with a manifest."""
    folder = write_checkpoint("qwen3", tmp_path / "model")
    (folder / "extra").mkdir()
    (folder / "extra" / "notes.txt").write_text("read me")
    write_model_manifest(folder)
    return folder


def load(folder: Path, **options) -> None:
    config = EngineConfig(model=str(folder), max_model_len=64, max_num_seqs=2, threads=1, **options)
    load_engine(config).close()


def refused(folder: Path, name: str) -> None:
    """Both ``verify`` and the loader refuse the model and name the file."""
    for check in (verify_model_integrity, load):
        with pytest.raises(IntegrityError, match=name.replace(".", r"\.")):
            check(folder)


def weights(folder: Path) -> Path:
    return next(iter(sorted(folder.glob("*.safetensors"))))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_what_is_whole_is_loaded(model):
    verify_model_integrity(model)
    verify_model_integrity(weights(model))
    load(model)


@pytest.mark.parametrize("place", [0, 0.01, 0.5, 0.999])
def test_a_flipped_bit_anywhere_in_the_weights_is_found(model, place):
    path = weights(model)
    flip(path, int(path.stat().st_size * place))
    refused(model, f"{path.name} holds other bytes")


@pytest.mark.parametrize("name", ["config.json", "extra/notes.txt"])
def test_small_files_count_too(model, name):
    path = model / name
    path.write_bytes(path.read_bytes().replace(b"e", b"f", 1))
    refused(model, name)


def test_what_is_cut_short_missing_or_too_many_is_named(model):
    path = weights(model)
    os.truncate(path, path.stat().st_size - 1)
    refused(model, f"{path.name} has")
    path.unlink()
    refused(model, f"{path.name} is missing")
    write_checkpoint("qwen3", model)
    (model / "extra" / "payload.py").write_text("")
    refused(model, "extra/payload.py is not in the manifest")


def test_swapped_files_are_named(model):
    (model / "a.bin").write_bytes(b"a" * 100)
    (model / "b.bin").write_bytes(b"b" * 100)
    write_model_manifest(model)
    (model / "a.bin").rename(model / "c.bin")
    (model / "b.bin").rename(model / "a.bin")
    (model / "c.bin").rename(model / "b.bin")
    refused(model, "a.bin holds other bytes; b.bin holds other bytes")


def test_an_edited_manifest_is_refused(model):
    text = (model / MANIFEST).read_text()
    (model / MANIFEST).write_text(text.replace('"size": ', '"size": 1', 1))
    refused(model, MANIFEST)


def test_many_faults_are_counted(model):
    for number in range(9):
        (model / f"more{number}").write_text("")
    with pytest.raises(IntegrityError, match="and 4 more"):
        verify_model_integrity(model)


def test_when_to_verify(model):
    path = weights(model)
    flip(path, path.stat().st_size - 1)
    load(model, verify=Verification.NEVER)
    (model / MANIFEST).unlink()
    load(model)
    with pytest.raises(IntegrityError, match=f"has no {MANIFEST}"):
        load(model, verify=Verification.ALWAYS)


def write_keys(folder: Path, name: str) -> tuple[Path, Path]:
    key = ed25519.Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_a_signature_tells_who_made_the_manifest(model, tmp_path):
    private, public = write_keys(tmp_path, "ours")
    _, other = write_keys(tmp_path, "other")
    with pytest.raises(IntegrityError, match="is not signed"):
        verify_model_integrity(model, public_key=public)
    sign_manifest(model, private)
    assert verify_model_integrity(model, public_key=public).files
    load(model, manifest_key=str(public))
    for check in (
        lambda: verify_model_integrity(model, public_key=other),
        lambda: load(model, manifest_key=str(other)),
    ):
        with pytest.raises(IntegrityError, match=r"not a signature .* by the key in"):
            check()
    # Whoever changes files and makes a new manifest has no signature of it.
    (model / "extra" / "notes.txt").write_text("read us")
    signature = (model / SIGNATURE).read_bytes()
    write_model_manifest(model)
    (model / SIGNATURE).write_bytes(signature)
    verify_model_integrity(model)
    with pytest.raises(IntegrityError, match="not a signature"):
        verify_model_integrity(model, public_key=public)
    for damaged in (b"", b"zz", b"00" * 64, b"0" * 5000, b"\xff"):
        (model / SIGNATURE).write_bytes(damaged)
        with pytest.raises(IntegrityError, match="not a signature"):
            verify_model_integrity(model, public_key=public)


def test_keys_that_are_none_are_refused(model, tmp_path):
    private, public = write_keys(tmp_path, "ours")
    sign_manifest(model, private)
    for key in (private, model / "config.json"):
        with pytest.raises(ConfigError, match="no ed25519 public key"):
            verify_model_integrity(model, public_key=key)
    with pytest.raises(ConfigError, match="cannot read the key"):
        verify_model_integrity(model, public_key=tmp_path / "none.pem")
    with pytest.raises(ConfigError, match="no ed25519 private key"):
        sign_manifest(model, public)


def test_the_model_is_known_by_its_manifest(model):
    manifest = write_model_manifest(model)
    config = EngineConfig(model=str(model), max_model_len=64, max_num_seqs=2, threads=1)
    engine = load_engine(config)
    engine.close()
    assert engine.info.digest == manifest.digest


def test_a_file_that_is_overwritten_while_it_is_loaded_changes_nothing(model):
    """Where the bytes had been read, they are used and right; what came later is not seen."""
    path = weights(model)
    original = path.read_bytes()
    with open_checkpoint(model, model_files(model, Verification.AUTO)) as checkpoint:
        before = {tensor.name: tensor.data.tobytes() for tensor in checkpoint.tensors()}
        with path.open("r+b") as file:  # in place, as a mapping would see it
            file.write(bytes(len(original)))
        after = {tensor.name: tensor.data.tobytes() for tensor in checkpoint.tensors()}
        assert after == before
        checkpoint.verify()
    with pytest.raises(CheckpointError, match="header"):
        open_checkpoint(model, model_files(model, Verification.NEVER))


def test_a_file_that_changes_while_it_is_read_is_found_out(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with ThreadPoolExecutor(1) as pool:
        file = PrivateFile(path, 200, pool)
        with pytest.raises(IntegrityError, match="cut short"):
            file.view(0, 200)
        file.close()


def test_private_bytes_are_those_of_the_file(tmp_path):
    path = tmp_path / "file"
    size = 2 * RANGE + 12345
    block = os.urandom(1 << 16)
    with path.open("wb") as out:
        for at in range(0, size, len(block)):
            out.write(block[: size - at])
    with ThreadPoolExecutor(2) as pool:
        file = PrivateFile(path, size, pool)
        last = file.view(size - 5, 5)
        first = file.view(RANGE - 3, 6)
        assert file.buffer[:16] == block[:16]
        assert not last.flags.writeable
        verified = file.sha256.result()
        file.close()
        file.close()
    assert bytes(first) == bytes(path.read_bytes()[RANGE - 3 : RANGE + 3]), "views outlive the file"
    import hashlib

    assert verified == hashlib.sha256(path.read_bytes()).hexdigest()
    shutil.rmtree(tmp_path)


def test_a_model_has_one_sampled_digest_verified_or_not(model):
    """What was measured of a model by that name stays its own when a manifest comes."""
    with (
        open_checkpoint(model) as plain,
        open_checkpoint(model, model_files(model, Verification.ALWAYS)) as verified,
    ):
        assert plain.digest == plain.sampled == verified.sampled != verified.digest


def test_a_name_with_blanks_is_told_once(model):
    (model / "two words.txt").write_text("read me")
    write_model_manifest(model)
    (model / "two words.txt").write_text("read me not")
    with pytest.raises(IntegrityError, match=r"two words\.txt has 11 bytes instead of 7$"):
        verify_model_integrity(model)


def test_a_header_is_read_before_the_rest_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nothing could be packed before all files have been read."""
    path = tmp_path / "f"
    path.write_bytes(bytes(3 * RANGE))
    read, go_on = PrivateFile._read, threading.Event()

    def slow(self: PrivateFile, at: int) -> None:
        if at:
            assert go_on.wait(30)
        read(self, at)

    monkeypatch.setattr(PrivateFile, "_read", slow)
    with ThreadPoolExecutor(2) as pool:
        file = PrivateFile(path, 3 * RANGE, pool)
        assert file.buffer_to(100)[:100] == bytes(100)
        assert not file.sha256.done()
        go_on.set()
        assert file.sha256.result() == hashlib.sha256(bytes(3 * RANGE)).hexdigest()
        file.close()
