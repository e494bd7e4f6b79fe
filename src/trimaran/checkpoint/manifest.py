"""The list of a model's files that nothing may differ from: ``trimaran.manifest.json``, beside them.

A manifest stands for its whole folder: every file in it, at any depth, with its size and SHA-256. ``digest`` is the
SHA-256 of those lines (``<sha256>  <size>  <name>\\n``, by name), which names the model. What is ours is not listed:
the manifest, its signature, the cache's record.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from trimaran.base.errors import CheckpointError, IntegrityError
from trimaran.checkpoint.file_record import MANIFEST, OURS, SIGNATURE, FileRecord

MAX_FILES = 100_000
_MAX_BYTES = 50_000_000
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files of a model, by name (relative to the folder, with ``/``)."""

    version: int
    digest: str
    files: list[FileRecord]


def make_manifest(files: Sequence[FileRecord]) -> Manifest:
    """The manifest of ``files``, in any order."""
    ordered = sorted(files, key=lambda file: file.name)
    return Manifest(1, _digest(ordered), ordered)


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Writes the manifest into the folder, whole or not at all, and returns its path; an old signature goes."""
    path = folder / MANIFEST
    half = path.with_name(f".{MANIFEST}.part")
    half.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    (folder / SIGNATURE).unlink(missing_ok=True)
    half.replace(path)
    return path


def read_manifest(folder: Path) -> tuple[Manifest, bytes] | None:
    """The folder's manifest and the bytes of its file, or None where there is none.

    Raises ``IntegrityError`` on one that is damaged, contradicts itself, or names files outside the folder.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise IntegrityError(f"{path} has more than {_MAX_BYTES} bytes")
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(f"{path} is damaged: {error}") from None
    _check(path, manifest)
    return manifest, data


def folder_files(folder: Path) -> Iterator[str]:
    """Names of the files that a manifest of ``folder`` has to list, in no order.

    Links to files count as files; links to folders are not followed. Raises ``CheckpointError`` when a folder cannot
    be read or holds more than ``MAX_FILES``.
    """
    count = 0
    for root, _, names in os.walk(folder, onerror=_refuse):
        for name in names:
            relative = (Path(root) / name).relative_to(folder).as_posix()
            if relative in OURS:
                continue
            count += 1
            if count > MAX_FILES:
                raise CheckpointError(f"{folder} holds more than {MAX_FILES} files: it is no model's folder")
            yield relative


def _refuse(error: OSError) -> None:
    raise CheckpointError(f"cannot read {error.filename}: {error.strerror}") from error


def _digest(files: Sequence[FileRecord]) -> str:
    lines = "".join(f"{file.sha256}  {file.size}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()


def _check(path: Path, manifest: Manifest) -> None:
    if manifest.version != 1:
        raise IntegrityError(f"{path} has version {manifest.version}; version 1 is read")
    names = [file.name for file in manifest.files]
    if not names or len(names) > MAX_FILES or names != sorted(set(names)):
        raise IntegrityError(f"{path} must list 1 to {MAX_FILES} files, by name, each once")
    for file in manifest.files:
        parts = PurePosixPath(file.name).parts
        plain = file.name == "/".join(parts) and ".." not in parts and not file.name.startswith("/")
        if not plain or "\\" in file.name or "\0" in file.name or file.name in OURS:
            raise IntegrityError(f"{path} lists {file.name!r}, which is no file of the model")
        if not _SHA256.fullmatch(file.sha256) or file.size < 0:
            raise IntegrityError(f"{path}: {file.name} has no SHA-256 of 64 hex digits and size")
    if manifest.digest != _digest(manifest.files):
        raise IntegrityError(f"{path} was edited: its digest does not belong to the files that it lists")
