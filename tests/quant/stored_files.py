"""Quantised modules as checkpoints hold them, made in memory or read from the golden file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimaran.checkpoint import CheckpointTensor, StorageFormat
from trimaran.checkpoint.safetensors import FORMATS
from trimaran.quant.logical import logical_tensors
from trimaran.quant.stored import Stored

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "quantised.safetensors"
FORMAT_OF = {fmt.dtype: fmt for fmt in FORMATS.values()}


def tensor(name: str, array: np.ndarray) -> CheckpointTensor:
    """``array`` as a file holds it: not aligned."""
    fmt = FORMAT_OF[array.dtype]
    rows = int(np.prod(array.shape[:-1])) if array.ndim else 1
    shifted = np.frombuffer(b"\0" + np.ascontiguousarray(array).tobytes(), np.uint8)[1:]
    return CheckpointTensor(
        name, array.shape, fmt, shifted.reshape(rows, fmt.row_bytes(array.shape[-1] if array.ndim else 1))
    )


@dataclass
class Files:
    """What of a ``Checkpoint`` finding logical tensors needs."""

    arrays: Mapping[str, np.ndarray]
    quantisation: Mapping[str, Any] | None = None
    kind: str = "safetensors"

    @property
    def metadata(self) -> dict[str, Any]:
        return {} if self.quantisation is None else {"quantization_config": self.quantisation}

    def tensors(self) -> Iterator[CheckpointTensor]:
        yield from (tensor(name, array) for name, array in self.arrays.items())


def stored(leaves: Mapping[str, np.ndarray], **quantisation: Any) -> Stored:
    """The matrix of the one module whose tensors are ``leaves``."""
    files = Files({f"layer.proj.{leaf}": array for leaf, array in leaves.items()}, quantisation or None)
    (logical,) = logical_tensors(files)
    assert logical.name == "layer.proj.weight"
    return logical.open()


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes ``[rows, cols]`` to int32 ``[rows, ceil(cols * bits / 32)]``, bit by bit, the first code lowest."""
    rows, cols = codes.shape
    packed = np.zeros((rows, -(-cols * bits // 32)), np.uint64)
    for col in range(cols):
        word, place = divmod(col * bits, 32)
        packed[:, word] |= codes[:, col].astype(np.uint64) << np.uint64(place)
    return packed.astype(np.uint32).view(np.int32)


def open_file(path: Path) -> Files:
    """The tensors of a safetensors file, which needs no ``config.json`` beside it here."""
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    body = path.read_bytes()[8 + length :]
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(body[begin:end], StorageFormat(entry["dtype"]).dtype).reshape(entry["shape"])
    return Files(arrays)
