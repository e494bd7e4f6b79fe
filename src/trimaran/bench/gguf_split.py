"""Cuts a GGUF file into the parts of a sharded model (``NAME-00001-of-00004.gguf``), as llama.cpp's tool does."""

import struct
from contextlib import closing
from pathlib import Path

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.gguf import DEFAULT_ALIGNMENT, FORMATS, MAGIC
from trimaran.checkpoint.gguf_values import Cursor
from trimaran.checkpoint.mapping import MappedFile
from trimaran.checkpoint.tensors import CheckpointTensor

_U16, _I32 = 2, 5  # types of values


def split_gguf(path: Path, folder: Path, parts: int) -> list[Path]:
    """Writes ``parts`` files with about as many bytes of tensors each into ``folder``; the first has the metadata.

    Raises ``CheckpointError`` when ``path`` is not one whole GGUF file with tensors enough.
    """
    with open_checkpoint(path) as checkpoint, closing(MappedFile(path)) as file:
        tensors = list(checkpoint.tensors())
        alignment = int(checkpoint.metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        if checkpoint.kind != "gguf" or "split.count" in checkpoint.metadata or len(tensors) < parts:
            raise CheckpointError(f"{path} is not one GGUF file with at least {parts} tensors")
        keys, metadata = _metadata(file)
        written = []
        for number, share in enumerate(_shares(tensors, parts)):
            target = folder / f"{path.stem}-{number + 1:05}-of-{parts:05}.gguf"
            own = (keys, metadata) if number == 0 else (0, b"")
            _write(target, share, own, (number, parts, len(tensors)), alignment)
            written.append(target)
        return written


def _shares(tensors: list[CheckpointTensor], parts: int) -> list[list[CheckpointTensor]]:
    """In order, at least one for each part, and about as many bytes."""
    total, before, part = sum(tensor.data.nbytes for tensor in tensors), 0, 0
    shares: list[list[CheckpointTensor]] = [[] for _ in range(parts)]
    for number, tensor in enumerate(tensors):
        due = before >= total * (part + 1) / parts or len(tensors) - number < parts - part
        if due and part + 1 < parts and shares[part]:
            part += 1
        shares[part].append(tensor)
        before += tensor.data.nbytes
    return shares


def _metadata(file: MappedFile) -> tuple[int, bytes]:
    """How many keys the file has, and the bytes of all of them."""
    cursor = Cursor(file)
    cursor.pos = 4
    cursor.u32("version")
    cursor.u64("number of tensors")
    keys = cursor.u64("number of keys")
    start = cursor.pos
    for index in range(keys):
        cursor.value(cursor.name(f"key {index}"))
    return keys, file.buffer[start : cursor.pos]


def _write(
    target: Path,
    tensors: list[CheckpointTensor],
    metadata: tuple[int, bytes],
    place: tuple[int, int, int],
    alignment: int,
) -> None:
    number, parts, count = place
    own = [("split.no", _U16, number), ("split.count", _U16, parts), ("split.tensors.count", _I32, count)]
    keys, head = metadata
    more = b"".join(
        _text(key) + struct.pack("<I", kind) + struct.pack("<H" if kind == _U16 else "<i", value)
        for key, kind, value in own
    )
    records, offset = b"", 0
    types = {fmt: kind for kind, fmt in FORMATS.items()}
    for tensor in tensors:
        shape = tensor.shape[::-1]
        records += _text(tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        records += struct.pack("<IQ", types[tensor.fmt], offset)
        offset += -(-tensor.data.nbytes // alignment) * alignment
    begin = MAGIC + struct.pack("<IQQ", 3, len(tensors), keys + len(own)) + head + more + records
    with target.open("wb") as file:
        file.write(begin + bytes(-len(begin) % alignment))
        for tensor in tensors:
            file.write(tensor.data.data)
            file.write(bytes(-tensor.data.nbytes % alignment))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
