"""Packed weights on disk, which the next start reads instead of packing.

::

    $TRIMARAN_HOME/
      packs/<name>/            weights.bin, and pack.json: what it is, and the SHA-256 of every piece of it
      packs/<name>.part/       being written, by the holder of the lock, or left by one that was killed
      locks/packs.lock

A pack appears by one rename when all of it is on the disk. Whoever may write to the folder may also write sums that
fit: they find faults, not forgers. So a folder that others may write to is not used at all.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trimaran.base.errors import TrimaranError
from trimaran.checkpoint.disk_space import demand_space
from trimaran.checkpoint.environment import home
from trimaran.checkpoint.file_lock import try_lock

if TYPE_CHECKING:
    from trimaran.checkpoint.tensors import Bytes

PIECE = 4 << 20  # bytes that are written, read and hashed together
FREE_PART = 20  # the share of the disk that stays free is one over this
_WEIGHTS, _NOTE = "weights.bin", "pack.json"
_MAX_NOTE = 64 << 20

log = logging.getLogger(__name__)


class PackDamagedError(TrimaranError):
    """A pack does not hold what it did when it was written. It is of no use; the model is."""


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int
    pieces: list[str]  # SHA-256 (hex) of every ``PIECE`` bytes
    about: str
    sha256: str  # of the above

    @staticmethod
    def of(size: int, pieces: list[str], about: str) -> "_Note":
        text = "\n".join([str(size), *pieces, about])
        return _Note(size, pieces, about, hashlib.sha256(text.encode()).hexdigest())


@dataclass(frozen=True)
class Pack:
    """A complete pack. ``about`` is what its writer noted; ``pieces`` are the sums of its pieces."""

    directory: Path
    size: int
    pieces: list[str]
    about: str

    @property
    def weights(self) -> Path:
        return self.directory / _WEIGHTS

    def used(self) -> None:
        """Notes that it was of use now: the one that has not been for longest is the first to go."""
        with suppress(OSError):
            os.utime(self.directory / _NOTE)

    def describe(self, about: str) -> None:
        """Changes what is noted about it."""
        _write_note(self.directory, _Note.of(self.size, self.pieces, about))

    def remove(self) -> None:
        """Who has it open keeps it."""
        _remove(self.directory)


def find_pack(name: str) -> Pack | None:
    """The pack called ``name``; None when there is none that is whole and ours alone to write."""
    directory = _root() / name
    try:
        for path in (directory.parent, directory, directory / _NOTE, directory / _WEIGHTS):
            if not _ours_alone(path.stat()):
                log.warning("%s may be written to by others: packed weights are not taken from there", path)
                return None
        if (directory / _NOTE).stat().st_size > _MAX_NOTE:
            return None
        note = msgspec.json.decode((directory / _NOTE).read_bytes(), type=_Note)
        size = (directory / _WEIGHTS).stat().st_size
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("cannot use the packed weights in %s: %s", directory, error)
        return None
    if note != _Note.of(note.size, note.pieces, note.about) or size != note.size:
        log.warning("the packed weights in %s are damaged", directory)
        return None
    return Pack(directory, note.size, note.pieces, note.about)


def write_pack(
    name: str, replaces: str, weights: "Bytes", about: str, limit: int, stopped: Callable[[], bool] = lambda: False
) -> bool:
    """Writes a pack, and removes others whose name begins with ``replaces``; True when it is there.

    All packs together take at most ``limit`` bytes: those that have not been of use for longest go first. It is not
    written when it is too large for that, when the disk is too small, when another process writes one, or when
    ``stopped`` turns true. Raises ``OSError`` or ``SourceError``; nothing is left behind then.
    """
    root = _root()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with try_lock(home() / "locks" / "packs.lock") as locked:
        if not locked or weights.nbytes > limit:
            return False
        for left in root.glob("*.part"):
            _remove(left)
        _make_room(root, limit - weights.nbytes, lambda other: other.startswith(replaces))
        demand_space(root, weights.nbytes + shutil.disk_usage(root).total // FREE_PART)
        part = root / f"{name}.part"
        part.mkdir(mode=0o700)
        try:
            pieces = _write_weights(part / _WEIGHTS, weights, stopped)
            if pieces is None:
                return False
            _write_note(part, _Note.of(weights.nbytes, pieces, about))
            part.rename(root / name)
            return True
        finally:
            _remove(part)


def _write_weights(path: Path, weights: "Bytes", stopped: Callable[[], bool]) -> list[str] | None:
    pieces = []
    with path.open("xb", buffering=0) as file:
        os.fchmod(file.fileno(), 0o600)
        for at in range(0, weights.nbytes, PIECE):
            if stopped():
                return None
            piece = weights[at : at + PIECE].data
            pieces.append(hashlib.sha256(piece).hexdigest())
            while piece:
                piece = piece[file.write(piece) :]
        os.fsync(file.fileno())  # or a power cut could leave the name of a file that is not there yet
    return pieces


def _write_note(directory: Path, note: _Note) -> None:
    half = directory / f".{_NOTE}.{os.getpid()}"
    half.write_bytes(msgspec.json.encode(note))
    half.chmod(0o600)
    half.replace(directory / _NOTE)


def _make_room(root: Path, limit: int, replaced: Callable[[str], bool]) -> None:
    """Removes packs until the others take no more than ``limit`` bytes."""
    kept: list[tuple[float, int, Path]] = []  # when it was last of use, and its size
    for directory in root.iterdir():
        try:
            used, size = (directory / _NOTE).stat().st_mtime, (directory / _WEIGHTS).stat().st_size
        except OSError:  # no pack
            _remove(directory)
            continue
        if replaced(directory.name):
            _remove(directory)
        else:
            kept.append((used, size, directory))
    total = sum(size for _, size, _ in kept)
    for _, size, directory in sorted(kept):
        if total <= limit:
            return
        log.info("removing the packed weights in %s: there is no room for more", directory)
        _remove(directory)
        total -= size


def _ours_alone(stat: os.stat_result) -> bool:
    return stat.st_uid in (0, os.geteuid()) and not stat.st_mode & 0o022


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _root() -> Path:
    return home() / "packs"
