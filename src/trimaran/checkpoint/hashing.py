"""SHA-256 of files, several at a time: the digests release the interpreter, so threads share the work."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.file_record import FileRecord

PIECE = 4 << 20
THREADS = 8  # at most

Progress = Callable[[int], None]  # bytes more that were read


def workers() -> int:
    """Threads for hashing and reading: one a core, at most ``THREADS``."""
    return min(THREADS, os.cpu_count() or 1)


def hash_files(folder: Path, names: Sequence[str], progress: Progress = lambda _: None) -> list[FileRecord]:
    """Size and SHA-256 of each file, in order; raises ``CheckpointError`` naming one that cannot be read."""
    with ThreadPoolExecutor(workers()) as pool:
        futures = [pool.submit(_hash, folder, name, progress) for name in names]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _hash(folder: Path, name: str, progress: Progress) -> FileRecord:
    sha, size = hashlib.sha256(), 0
    try:
        with (folder / name).open("rb", buffering=0) as file:
            while piece := file.read(PIECE):
                sha.update(piece)
                size += len(piece)
                progress(len(piece))
    except OSError as error:
        raise CheckpointError(f"cannot read {folder / name}: {error.strerror}") from error
    return FileRecord(name, sha.hexdigest(), size)
