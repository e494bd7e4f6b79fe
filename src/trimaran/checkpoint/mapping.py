"""A file as memory that is read only."""

import mmap
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trimaran.base.errors import CheckpointError

if TYPE_CHECKING:
    from trimaran.checkpoint.tensors import Bytes


class OpenFile(Protocol):
    """A file whose bytes can be looked at."""

    path: Path
    size: int

    @property
    def buffer(self) -> mmap.mmap:
        """The file's bytes; slices are copies."""
        ...

    def buffer_to(self, end: int) -> mmap.mmap:
        """As ``buffer``, of which only what lies before ``end`` may be looked at: a file that is being read need not be
        waited for."""
        ...

    def view(self, offset: int, size: int) -> "Bytes":
        """``size`` bytes from ``offset`` on, without a copy. The view stays valid when the file is closed."""
        ...

    def release(self) -> None:
        """Takes out of resident memory what can be read again."""
        ...

    def close(self) -> None:
        """Frees what no view needs, and the rest with the last view; idempotent."""
        ...


class MappedFile:
    """Maps a whole file for reading; raises ``CheckpointError`` when it cannot be opened or is empty.

    Views keep the mapping alive: memory is unmapped when the file is closed and the last view has gone. A file must not
    be truncated while it is mapped (the cache replaces files by rename, which leaves the mapped one whole).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # mmap's word for a file of no bytes
            raise CheckpointError(f"{path} is empty") from None
        except OSError as error:
            raise CheckpointError(f"cannot open {path}: {error.strerror}") from error
        self.size = len(self._map)

    @property
    def buffer(self) -> mmap.mmap:
        """The file's bytes; slices are copies."""
        return self._map

    def buffer_to(self, end: int) -> mmap.mmap:  # noqa: ARG002, as in the protocol
        """All of it may be looked at."""
        return self._map

    def view(self, offset: int, size: int) -> "Bytes":
        """``size`` bytes from ``offset`` on, without a copy."""
        assert 0 <= offset <= offset + size <= self.size, (self.path, offset, size)
        import numpy as np

        return np.frombuffer(self._map, dtype=np.uint8, count=size, offset=offset)

    def release(self) -> None:
        """Takes the pages out of this process's resident memory; a later read brings them back from the file."""
        if sys.platform == "linux":  # elsewhere the advice has another meaning, or does not exist
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmaps now, or when the last view has gone; idempotent."""
        with suppress(BufferError):  # views are held outside: their references own the mapping from here on
            self._map.close()
