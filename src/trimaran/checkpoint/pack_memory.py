"""A pack's weights in memory: mapped and shared with who does the same, or read into memory of our own and checked."""

import hashlib
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimaran.checkpoint.hashing import workers
from trimaran.checkpoint.packs import PIECE, Pack, PackDamagedError

if TYPE_CHECKING:
    from trimaran.checkpoint.tensors import Bytes

_HUGE = 2 << 20  # bytes of a page that needs few entries in tables: weights are read from front to back, step by step


class PackMemory:
    """Weights of a pack. ``memory`` may be handed on at once, and read from when ``wait`` has returned.

    Unchecked, it is the file itself, which all processes share. Checked, it is private: what is used is what was
    hashed. The memory goes with its last view.
    """

    def __init__(self, pack: Pack, *, check: bool) -> None:
        """Raises ``PackDamagedError`` when the file cannot be opened."""
        self._path = pack.weights
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise PackDamagedError(f"cannot open {self._path}: {error.strerror}") from error
        self._file = file
        self._pool = ThreadPoolExecutor(workers()) if check else None
        self._pieces: list[Future[None]] = []
        self.memory: Bytes = _mapped(self._path, file, pack.size) if self._pool is None else _private(pack.size)
        if self._pool is not None:
            view, starts = self.memory.data, range(0, pack.size, PIECE)
            self._pieces = [
                self._pool.submit(self._read, at, view[at : at + PIECE], expected)
                for at, expected in zip(starts, pack.pieces, strict=False)
            ]
            self._complete = len(starts) == len(pack.pieces)
            self.memory = self.memory.view()
            self.memory.flags.writeable = False

    def wait(self) -> None:
        """Waits until all is read; raises ``PackDamagedError`` when it is not what was written."""
        if self._pool is None:
            return
        if not self._complete:
            raise PackDamagedError(f"{self._path} has other pieces than its note says")
        for piece in self._pieces:
            piece.result()

    def close(self) -> None:
        """Ends what still reads; idempotent."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, at: int, into: memoryview, expected: str) -> None:
        rest, offset = into, at
        while rest:
            try:
                count = os.preadv(self._file, [rest], offset)
            except OSError as error:
                raise PackDamagedError(f"cannot read {self._path}: {error.strerror}") from error
            if not count:
                raise PackDamagedError(f"{self._path} was cut short")
            rest, offset = rest[count:], offset + count
        if hashlib.sha256(into).hexdigest() != expected:
            raise PackDamagedError(f"{self._path} is not what was written: bytes {at} to {at + len(into)} have changed")


def _mapped(path: Path, file: int, size: int) -> "Bytes":
    try:
        mapping = mmap.mmap(file, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise PackDamagedError(f"cannot map {path}: {error}") from error
    with suppress(OSError, AttributeError):
        mapping.madvise(mmap.MADV_WILLNEED)
        mapping.madvise(mmap.MADV_HUGEPAGE)  # for files, where the system was built so
    return np.frombuffer(mapping, np.uint8)


def _private(size: int) -> "Bytes":
    """Memory that lies on pages of ``_HUGE`` bytes, where the system has them."""
    mapping = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, np.uint8)
    first = -whole.ctypes.data % _HUGE
    return whole[first : first + size]
