"""A file read once into memory of our own: by several threads, while its SHA-256 is taken behind them."""

import hashlib
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.base.errors import CheckpointError, IntegrityError

if TYPE_CHECKING:
    from trimaran.checkpoint.tensors import Bytes

RANGE = 8 << 20  # bytes that one task reads
PIECE = 1 << 20  # bytes that are hashed together


class PrivateFile:
    """``size`` bytes of a file, of which no later change to the file is seen. ``sha256`` is theirs, when it is done.

    A view waits for its bytes only; nothing waits for the hash. Views keep the memory alive.
    """

    def __init__(self, path: Path, size: int, pool: ThreadPoolExecutor) -> None:
        """Raises ``CheckpointError`` when the file cannot be opened or is empty."""
        self.path = path
        self.size = size
        if not size:
            raise CheckpointError(f"{path} is empty")
        try:
            number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise CheckpointError(f"cannot open {path}: {error.strerror}") from error
        self._file = number
        self._map = mmap.mmap(-1, size)
        self._whole = memoryview(self._map)
        # In this order: tasks begin in the order of their submission, so what the hash waits for has begun before it.
        self._ranges = [pool.submit(self._read, at) for at in range(0, size, RANGE)]
        self.sha256: Future[str] = pool.submit(self._hash)
        self.sha256.add_done_callback(lambda _: os.close(number))

    @property
    def buffer(self) -> mmap.mmap:
        """All bytes; slices are copies. Waits until the file is read."""
        self._wait(0, self.size)
        return self._map

    def buffer_to(self, end: int) -> mmap.mmap:
        """The bytes before ``end`` are there; waits for those alone."""
        self._wait(0, min(end, self.size))
        return self._map

    def view(self, offset: int, size: int) -> "Bytes":
        """``size`` bytes from ``offset`` on, without a copy."""
        assert 0 <= offset <= offset + size <= self.size, (self.path, offset, size)
        self._wait(offset, offset + size)
        import numpy as np

        view = np.frombuffer(self._map, dtype=np.uint8, count=size, offset=offset)
        view.flags.writeable = False
        return view

    def release(self) -> None:
        """Nothing: the bytes are nowhere else."""

    def close(self) -> None:
        """Ends what still reads; the memory goes with the last view. Idempotent."""
        running: list[Future[Any]] = [self.sha256, *self._ranges]
        for future in running:
            future.cancel()
        wait(running)
        self._whole.release()
        with suppress(BufferError):
            self._map.close()

    def _wait(self, first: int, end: int) -> None:
        for future in self._ranges[first // RANGE : -(-end // RANGE)]:
            future.result()

    def _read(self, at: int) -> None:
        end = min(at + RANGE, self.size)
        while at < end:
            try:
                count = os.preadv(self._file, [self._whole[at:end]], at)
            except OSError as error:
                raise CheckpointError(f"cannot read {self.path}: {error.strerror}") from error
            if not count:
                raise IntegrityError(f"{self.path} was cut short while it was read")
            at += count

    def _hash(self) -> str:
        sha = hashlib.sha256()
        for at, future in zip(range(0, self.size, RANGE), self._ranges, strict=True):
            future.result()
            for piece in range(at, min(at + RANGE, self.size), PIECE):
                sha.update(self._whole[piece : min(piece + PIECE, at + RANGE, self.size)])
        return sha.hexdigest()
