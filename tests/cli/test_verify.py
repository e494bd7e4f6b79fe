import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from typer.testing import CliRunner

from trimaran.checkpoint.file_record import MANIFEST, SIGNATURE
from trimaran.cli.app import app


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_manifest_is_written_signed_and_verified(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.gguf").write_bytes(b"GGUF")
    key = ed25519.Ed25519PrivateKey.generate()
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    result = run("verify", folder)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"has no {MANIFEST}" in result.stderr

    result = run("manifest", folder, "--sign", private)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("1 files, 0.0 MB: sha256 ")
    assert (folder / SIGNATURE).exists()
    checked = run("verify", folder / "model.gguf", "--key", public)
    assert checked.exit_code == 0, checked.output
    assert checked.stdout == result.stdout.rstrip("\n") + ", signed\n"

    (folder / "model.gguf").write_bytes(b"GGUG")
    result = run("verify", folder)
    assert result.exit_code == 1
    assert "model.gguf holds other bytes" in result.stderr


def test_a_file_stands_for_the_folder_around_it_which_is_said(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    result = run("manifest", tmp_path / "a.gguf")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("2 files, ")
    assert f"all files in {tmp_path} belong" in result.stderr


@pytest.mark.parametrize(("name", "said"), [("", "holds no .gguf or .safetensors file"), ("passwd", "is neither")])
def test_what_is_no_model_gets_no_manifest(tmp_path, name, said):
    (tmp_path / "passwd").write_text("root")
    result = run("manifest", tmp_path / name)
    assert result.exit_code == 1
    assert said in result.stderr
    assert not (tmp_path / MANIFEST).exists()


def test_a_model_that_is_nowhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIMARAN_HOME", str(tmp_path))
    assert run("verify", tmp_path / "none").exit_code == 1
    assert run("verify", "smollm2").exit_code == 1, "nothing is fetched in order to be verified"
