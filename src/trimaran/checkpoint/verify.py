"""Whether a model's files are those of its manifest."""

import logging
from pathlib import Path

from trimaran.base.errors import IntegrityError
from trimaran.checkpoint.file_record import MANIFEST
from trimaran.checkpoint.hashing import Progress, hash_files
from trimaran.checkpoint.manifest import Manifest, folder_files, make_manifest, read_manifest, write_manifest
from trimaran.checkpoint.model_files import AS_THEY_ARE, ListedFiles, ModelFiles, VerifiedFiles, compare
from trimaran.checkpoint.signature import check_signature
from trimaran.checkpoint.verification import Verification as Verification

log = logging.getLogger(__name__)


def verify_model_integrity(
    path: str | Path, *, public_key: str | Path | None = None, progress: Progress = lambda _: None
) -> Manifest:
    """Reads all files of a model and returns its manifest if they are what that says.

    ``path`` is the model's folder, or a file in it; ``public_key`` a PEM file with the ed25519 key that must have
    signed the manifest. ``progress`` is called, from several threads, with bytes that were read. Raises
    ``IntegrityError`` naming the files that are missing, too many, cut short or changed, or when there is no manifest;
    ``CheckpointError`` when a file cannot be read.
    """
    folder = folder_of(Path(path))
    manifest = _require(folder, read_manifest(folder), public_key)
    compare(folder, manifest, [])
    compare(folder, manifest, hash_files(folder, [file.name for file in manifest.files], progress))
    return manifest


def write_model_manifest(path: str | Path, *, progress: Progress = lambda _: None) -> Manifest:
    """Hashes all files of a model's folder and writes its manifest; raises ``CheckpointError``."""
    folder = folder_of(Path(path))
    names = sorted(folder_files(folder))
    if not names:
        raise IntegrityError(f"{folder} holds no files")
    manifest = make_manifest(hash_files(folder, names, progress))
    write_manifest(folder, manifest)
    return manifest


def model_files(path: Path, when: Verification, public_key: str | Path | None = None) -> ModelFiles:
    """How to open the model at ``path``; raises ``IntegrityError`` when that shows already that it is not whole.

    A ``public_key`` asks for a signed manifest, so there has to be one.
    """
    folder = folder_of(path)
    if when is Verification.NEVER:
        return AS_THEY_ARE
    found = read_manifest(folder)
    if found is None and when is Verification.AUTO and public_key is None:
        log.info("%s has no %s: its files are not verified", folder, MANIFEST)
        return AS_THEY_ARE
    return VerifiedFiles(folder, _require(folder, found, public_key))


def text_files(path: Path, when: Verification, public_key: str | Path | None = None) -> ModelFiles:
    """As ``model_files``, for who reads a tokenizer and templates while another process verifies all of the model.

    What lies in a large file, as GGUF's metadata, is not checked: hold ``Checkpoint.sampled`` against the other's.
    """
    folder = folder_of(path)
    found = None if when is Verification.NEVER else read_manifest(folder)
    if found is None:
        return AS_THEY_ARE  # whether there has to be one is the other's business
    return ListedFiles(folder, _require(folder, found, public_key))


def folder_of(path: Path) -> Path:
    """The folder that a model's manifest stands for."""
    return path if path.is_dir() else path.parent


def _require(folder: Path, found: tuple[Manifest, bytes] | None, public_key: str | Path | None) -> Manifest:
    if found is None:
        raise IntegrityError(f"{folder} has no {MANIFEST}; `trimaran manifest` writes one where the files are right")
    manifest, data = found
    if public_key is not None:
        check_signature(folder, data, Path(public_key))
    return manifest
