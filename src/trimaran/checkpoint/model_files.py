"""How a checkpoint's files are opened: mapped as they are, or read once into memory of our own and checked there."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from trimaran.base.errors import CheckpointError, IntegrityError
from trimaran.checkpoint.file_record import FileRecord
from trimaran.checkpoint.hashing import hash_files, workers
from trimaran.checkpoint.manifest import Manifest, folder_files
from trimaran.checkpoint.mapping import MappedFile, OpenFile
from trimaran.checkpoint.private_file import PrivateFile


class ModelFiles(Protocol):
    """Opens files of one model. What was opened is proven to be the manifest's only once ``check`` has returned."""

    digest: str | None  # of the manifest, where there is one

    def open(self, path: Path) -> OpenFile:
        """A large file; raises ``CheckpointError``."""
        ...

    def read(self, path: Path) -> bytes:
        """A small file, whole; raises ``FileNotFoundError`` and other ``OSError``."""
        ...

    def check(self) -> None:
        """Waits until all is hashed; raises ``IntegrityError`` naming the files that are not the manifest's."""
        ...

    def close(self) -> None:
        """Ends what still runs; files that were opened are closed by who opened them. Idempotent."""
        ...


class MappedFiles:
    """Files as they are, mapped; nothing is checked."""

    digest: str | None = None

    def open(self, path: Path) -> OpenFile:
        return MappedFile(path)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


AS_THEY_ARE = MappedFiles()


class ListedFiles:
    """Files of a folder that must be those of its manifest, as far as they are read whole; large ones are mapped, and
    it is for others to check them."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Raises ``IntegrityError`` when files are missing, too many, or of the wrong size."""
        self._folder = folder.resolve()
        self._manifest = manifest
        self._records = {file.name: file for file in manifest.files}
        compare(folder, manifest, [])
        self.digest: str | None = manifest.digest

    def open(self, path: Path) -> OpenFile:
        self._record(path)
        return MappedFile(path)

    def read(self, path: Path) -> bytes:
        record = self._record(path)
        data = path.read_bytes()
        if len(data) != record.size or hashlib.sha256(data).hexdigest() != record.sha256:
            raise IntegrityError(f"{path} is not the file that the model's manifest lists")
        return data

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _record(self, path: Path) -> FileRecord:
        try:
            return self._known((path.parent.resolve() / path.name).relative_to(self._folder).as_posix())
        except ValueError:
            raise IntegrityError(f"{path} lies outside the folder of the model's manifest, {self._folder}") from None

    def _known(self, name: str) -> FileRecord:
        record = self._records.get(name)
        if record is None:
            raise IntegrityError(f"{self._folder / name} is not in the model's manifest")
        return record


class VerifiedFiles(ListedFiles):
    """Files of a folder that must be those of its manifest, all of them.

    Large files are read once, into private memory, and what is used is what is hashed: whoever changes a file meanwhile
    changes nothing, or is found out. Hashing goes on beside the work with the bytes.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Raises ``IntegrityError`` when files are missing, too many, or of the wrong size."""
        super().__init__(folder, manifest)
        self._hashed: dict[str, Future[str]] = {}
        self._pool = ThreadPoolExecutor(workers())

    def open(self, path: Path) -> OpenFile:
        record = self._record(path)
        file = PrivateFile(path, record.size, self._pool)
        self._hashed[record.name] = file.sha256
        return file

    def read(self, path: Path) -> bytes:
        data = super().read(path)
        record = self._record(path)
        done: Future[str] = Future()
        done.set_result(record.sha256)
        self._hashed[record.name] = done
        return data

    def check(self) -> None:
        hashed = {name: sha for name, sha in self._hashed.items() if not sha.cancelled()}  # cancelled: closed before
        found = [FileRecord(name, sha.result(), self._known(name).size) for name, sha in hashed.items()]
        rest = [file.name for file in self._manifest.files if file.name not in hashed]
        compare(self._folder, self._manifest, found + hash_files(self._folder, rest))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def compare(folder: Path, manifest: Manifest, hashed: Sequence[FileRecord]) -> None:
    """Raises ``IntegrityError`` that names the files that are missing, too many, of another size or hash."""
    listed = {file.name: file for file in manifest.files}
    there = set(folder_files(folder))
    resized = set()
    faults = [f"{name} is missing" for name in sorted(listed.keys() - there)]
    faults += [f"{name} is not in the manifest" for name in sorted(there - listed.keys())]
    for name in sorted(listed.keys() & there):
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise CheckpointError(f"cannot read {folder / name}: {error.strerror}") from error
        if size != listed[name].size:
            resized.add(name)
            faults.append(f"{name} has {size} bytes instead of {listed[name].size}")
    said = resized | (listed.keys() - there)
    faults += [
        f"{file.name} holds other bytes" for file in hashed if file != listed[file.name] and file.name not in said
    ]
    if faults:
        shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
        raise IntegrityError(f"{folder} is not what its manifest says: {shown}")
