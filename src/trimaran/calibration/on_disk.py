"""Activations in files without names: a forward over more text than memory holds."""

import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from trimaran.kernels.program import Buffer
from trimaran.kernels.step import Float32


class OnDisk(MutableMapping[Buffer, Float32]):
    """Buffers of one forward, each in a file in ``folder`` that is gone when the buffer is, or the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Buffer, BinaryIO] = {}

    def __getitem__(self, buffer: Buffer) -> Float32:
        file = self._files[buffer]
        file.seek(0)
        return np.fromfile(file, np.float32).reshape(-1, buffer.width)

    def __setitem__(self, buffer: Buffer, values: Float32) -> None:
        assert values.shape[1] == buffer.width, (buffer, values.shape)
        if buffer in self._files:
            del self[buffer]
        self._files[buffer] = file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115, closed with its buffer
        values.astype(np.float32, copy=False).tofile(file)

    def __delitem__(self, buffer: Buffer) -> None:
        self._files.pop(buffer).close()

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def close(self) -> None:
        """Drops all buffers."""
        for buffer in list(self):
            del self[buffer]
