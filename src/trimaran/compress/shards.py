"""safetensors shards that are laid out before any tensor is made, so that rows can be written as they come.

Source: the format description in the safetensors README. Within a shard tensors lie by the size of their values, the
largest first, as the format's own library writes them: none is unaligned.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt

from trimaran.checkpoint.safetensors import INDEX
from trimaran.compress.recipe import Output


@dataclass(frozen=True)
class Place:
    """``offset`` bytes into shard number ``shard``."""

    shard: int
    offset: int


def size_of(output: Output) -> int:
    """Bytes of the tensor."""
    return prod(output.shape) * output.fmt.block_bytes


class Shards:
    """Files in ``folder``, to be filled by ``write``, which threads may call at the same time; a context manager."""

    def __init__(self, folder: Path, items: Sequence[Sequence[Output]], most: int) -> None:
        """``items`` are tensors that stay together; a shard has at most ``most`` bytes unless one item has more."""
        shards = _share_out(items, most)
        if len(shards) == 1:
            names = ["model.safetensors"]
        else:
            names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
        self._places: dict[str, Place] = {}
        self._files: list[int] = []
        for number, (name, shard) in enumerate(zip(names, shards, strict=True)):
            self._files.append(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            self._lay_out(number, shard)
        if len(shards) > 1:
            total = sum(size_of(output) for item in items for output in item)
            weight_map = {name: names[place.shard] for name, place in sorted(self._places.items())}
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    def _lay_out(self, number: int, shard: Sequence[Output]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for output in sorted(shard, key=lambda output: -output.fmt.block_bytes):
            size = size_of(output)
            header[output.name] = {
                "dtype": output.fmt.value,
                "shape": output.shape,
                "data_offsets": [at, at + size],
            }
            self._places[output.name] = Place(number, at)
            at += size
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        start = 8 + len(head)
        for output in shard:
            self._places[output.name] = Place(number, start + self._places[output.name].offset)
        _write(self._files[number], len(head).to_bytes(8, "little") + head, 0)
        os.truncate(self._files[number], start + at)

    def write(self, output: Output, row: int, rows: npt.NDArray[Any]) -> None:
        """``rows`` of the tensor from its ``row`` on; their bytes are written as they lie in the array."""
        place = self._places[output.name]
        row_bytes = output.shape[-1] * output.fmt.block_bytes if output.shape else 0
        _write(self._files[place.shard], memoryview(rows.tobytes()), place.offset + row * row_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            if error is None:
                os.fsync(file)
            os.close(file)


def _share_out(items: Sequence[Sequence[Output]], most: int) -> list[list[Output]]:
    shards: list[list[Output]] = [[]]
    filled = 0
    for item in items:
        size = sum(map(size_of, item))
        if filled and filled + size > most:
            shards.append([])
            filled = 0
        shards[-1] += item
        filled += size
    return shards


def _write(file: int, data: bytes | memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
