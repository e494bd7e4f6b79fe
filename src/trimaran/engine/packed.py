"""Starts from packed weights that an earlier start has kept, and keeps them for the next one.

A pack belongs to a model's digest, a weight format or two, activations, an instruction set and a build of the core; its
folder is called after them. It is of use where the model's files are those that it was packed from:

* Verified, the manifest's digest is the pack's, and files that were written to since are hashed again (``always``: all
  of them). The pack is read into private memory and hashed. So what is served was verified, and a file that was
  tampered with is refused as ever.
* Otherwise no file may have been written to since, as the file system tells.

A signed manifest says nothing of packs, so with a key there are none.
"""

import hashlib
import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trimaran.base.errors import CheckpointError, TrimaranError
from trimaran.base.version import __version__
from trimaran.checkpoint.environment import packed_cache_bytes
from trimaran.checkpoint.file_record import FileRecord
from trimaran.checkpoint.file_state import FileState, file_states, settled
from trimaran.checkpoint.gguf_parts import part_names
from trimaran.checkpoint.hashing import hash_files
from trimaran.checkpoint.manifest import Manifest, read_manifest
from trimaran.checkpoint.model_files import compare
from trimaran.checkpoint.pack_memory import PackMemory
from trimaran.checkpoint.packs import Pack, find_pack, write_pack
from trimaran.checkpoint.verification import Verification
from trimaran.checkpoint.verify import folder_of
from trimaran.engine.config import EngineConfig
from trimaran.kernels.native import NativeExecutor, choose_isa
from trimaran.kernels.native_core import build_digest
from trimaran.kernels.packed_weights import Packed, WeightShape, without_numbers
from trimaran.kernels.weights import Weight
from trimaran.models.config import ModelConfig

GRACE_SECONDS = 5.0  # that closing an engine waits for a pack that is nearly written

log = logging.getLogger(__name__)


class _About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a pack notes: all that an engine needs of the model beside packed weights."""

    name: str  # of the pack
    sampled: str  # see ``Checkpoint.sampled``
    model: ModelConfig
    weights: dict[str, WeightShape]
    outlier_rows: dict[str, int]
    files: list[FileState]  # of the model, when they were read


@dataclass(frozen=True)
class PackKeeper:
    """Where the pack of one configuration is, and what it must fit."""

    name: str
    stem: str  # how packs of other builds of the same begin
    folder: Path
    manifest: Manifest | None
    verify: Verification
    files: list[FileState]
    limit: int

    @property
    def verified(self) -> bool:
        return self.manifest is not None and self.verify is not Verification.NEVER

    def find(self) -> "FoundPack | None":
        """The pack, being read; None where there is none. Raises ``IntegrityError`` on files too many or missing."""
        pack = find_pack(self.name)
        if pack is None:
            return None
        try:
            about = msgspec.json.decode(pack.about, type=_About)
            weights = without_numbers(about.weights)
        except (msgspec.DecodeError, CheckpointError, KeyError) as error:
            log.warning("cannot use the packed weights in %s: %s", pack.directory, error)
            return None
        if about.name != self.name or (not self.verified and about.files != self.files):
            return None
        if self.manifest is not None and self.verified:
            compare(self.folder, self.manifest, [])
        pack.used()
        return FoundPack(self, pack, about, weights)

    def keep(
        self, executor: NativeExecutor, model: ModelConfig, shapes: Mapping[str, WeightShape], sampled: str
    ) -> "PackWriter | None":
        """Begins to write the pack of what ``executor`` has packed, if what it was packed from is known well enough."""
        certain = self.verified or (self.manifest is None and settled(self.files))
        if not certain or self.files != _states(self.folder, [file.name for file in self.files]):
            return None
        packed = executor.packed
        about = _About(self.name, sampled, model, dict(shapes), dict(packed.outlier_rows), self.files)
        return PackWriter(self, packed, msgspec.json.encode(about).decode())


def keeper_for(config: EngineConfig) -> PackKeeper | None:
    """None where packs are not to be used, or nothing is known of the files."""
    limit = packed_cache_bytes() if config.packed_cache_bytes is None else config.packed_cache_bytes
    if config.executor != "native" or not limit or config.manifest_key is not None:
        return None
    path = Path(config.model)
    folder = folder_of(path)
    try:
        found = read_manifest(folder)
    except CheckpointError:  # whoever opens the model says what is wrong
        found = None
        if config.verify is not Verification.NEVER:
            return None
    manifest = None if found is None else found[0]
    names = _own_files(path) if manifest is None else [file.name for file in manifest.files]
    files = _states(folder, names)
    if files is None:
        return None
    whose = hashlib.sha256(str(path.absolute()).encode()).hexdigest() if manifest is None else manifest.digest
    formats = [config.prefill_format, config.weight_format] if config.apart else [config.weight_format]
    held = "+".join(fmt or "own" for fmt in formats)
    parts = (whose[:32], held, config.activations, choose_isa(os.environ))
    stem = "-".join(parts) + "-"
    build = hashlib.sha256(build_digest() + __version__.encode()).hexdigest()[:16]
    return PackKeeper(stem + build, stem, folder, manifest, config.verify, files, limit)


class FoundPack:
    """A pack that is being read, and the model's files that are being hashed beside it."""

    def __init__(self, keeper: PackKeeper, pack: Pack, about: _About, weights: dict[str, Weight]) -> None:
        """Raises ``PackDamagedError``."""
        self.model = about.model
        self.weights = weights  # without numbers
        self.verified = keeper.verified
        self.sampled = about.sampled
        self.digest = keeper.manifest.digest if keeper.manifest and keeper.verified else about.sampled
        self._keeper, self._pack, self._about = keeper, pack, about
        self._memory = PackMemory(pack, check=keeper.verify is not Verification.NEVER)
        self._pool = ThreadPoolExecutor(1)
        self._hashed: Future[list[FileRecord]] | None = None
        if keeper.verified:
            known = set() if keeper.verify is Verification.ALWAYS else set(about.files)
            written = [file.name for file in keeper.files if file not in known]
            self._hashed = self._pool.submit(hash_files, keeper.folder, written)

    @property
    def packed(self) -> Packed:
        return Packed(self._memory.memory, self._about.outlier_rows)

    def check(self) -> None:
        """Waits until everything is read and hashed.

        Raises ``IntegrityError`` naming files of the model that are not the manifest's, ``PackDamagedError``.
        """
        hashed = [] if self._hashed is None else self._hashed.result()
        if hashed and self._keeper.manifest is not None:
            compare(self._keeper.folder, self._keeper.manifest, hashed)
        self._memory.wait()
        if hashed and self._about.files != self._keeper.files:  # they are what they were: need not be hashed again
            about = msgspec.structs.replace(self._about, files=self._keeper.files)
            with suppress(OSError):
                self._pack.describe(msgspec.json.encode(about).decode())

    def remove(self) -> None:
        self._pack.remove()

    def close(self) -> None:
        """Ends what still runs; idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._memory.close()


class PackWriter:
    """Writes a pack on a thread of its own, behind all other work."""

    def __init__(self, keeper: PackKeeper, packed: Packed, about: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, args=(keeper, packed, about), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Gives it a moment to finish, then has it leave nothing behind."""
        self._thread.join(GRACE_SECONDS)
        self._stopped.set()
        self._thread.join(GRACE_SECONDS)

    def _write(self, keeper: PackKeeper, packed: Packed, about: str) -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        try:
            if write_pack(keeper.name, keeper.stem, packed.memory, about, keeper.limit, self._stopped.is_set):
                log.info("kept the packed weights for the next start: %s", keeper.name)
        except (OSError, TrimaranError) as error:
            log.warning("the packed weights are not kept for the next start: %s", error)


def _states(folder: Path, names: list[str]) -> list[FileState] | None:
    try:
        return file_states(folder, names)
    except CheckpointError:
        return None


def _own_files(path: Path) -> list[str]:
    """The files that the model at ``path`` may consist of, where no manifest lists them."""
    if path.suffix == ".gguf":
        return part_names(path.name)
    return sorted(entry.name for entry in folder_of(path).iterdir() if entry.is_file())
