"""Reads GGUF files, versions 2 and 3.

Source: ``docs/gguf.md`` in ggml. All numbers are little-endian. A file is a header (magic, version, counts), key-value
pairs, one record per tensor, padding to ``general.alignment``, and the tensors' data. Nothing in a file is trusted:
every count, length and offset is checked against the file's size before it is used.
"""

import hashlib
import struct
from pathlib import Path
from typing import Any

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.checkpoint import Checkpoint, check_spans
from trimaran.checkpoint.gguf_values import Cursor
from trimaran.checkpoint.mapping import MappedFile
from trimaran.checkpoint.tensors import StorageFormat, TensorSpan

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_TENSORS = 1 << 20
MAX_KEYS = 1 << 16

FORMATS: dict[int, StorageFormat] = {
    0: StorageFormat.F32,
    1: StorageFormat.F16,
    2: StorageFormat.Q4_0,
    3: StorageFormat.Q4_1,
    6: StorageFormat.Q5_0,
    7: StorageFormat.Q5_1,
    8: StorageFormat.Q8_0,
    10: StorageFormat.Q2_K,
    11: StorageFormat.Q3_K,
    12: StorageFormat.Q4_K,
    13: StorageFormat.Q5_K,
    14: StorageFormat.Q6_K,
    20: StorageFormat.IQ4_NL,
    23: StorageFormat.IQ4_XS,
    24: StorageFormat.I8,
    25: StorageFormat.I16,
    26: StorageFormat.I32,
    27: StorageFormat.I64,
    28: StorageFormat.F64,
    30: StorageFormat.BF16,
    39: StorageFormat.MXFP4,
}
_OTHER_TYPES = {  # ggml_type ids that we know but do not read, for the error's sake
    15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip


def read_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF file; raises ``CheckpointError`` that says what is wrong and at which byte."""
    file = MappedFile(path)
    try:
        return _read(path, file)
    except BaseException:
        file.close()
        raise


def _read(path: Path, file: MappedFile) -> Checkpoint:
    cursor = Cursor(file)
    if file.buffer[:4] != MAGIC:
        raise CheckpointError(f"{path} is not a GGUF file: it starts with {file.buffer[:4]!r}")
    cursor.pos = 4
    version = cursor.u32("version")
    if version not in VERSIONS:
        if struct.pack(">I", version) in (struct.pack("<I", v) for v in VERSIONS):
            raise CheckpointError(f"{path} is a big-endian GGUF file; only little-endian files are read")
        raise CheckpointError(f"{path} has GGUF version {version}; versions 2 and 3 are read")
    tensors = cursor.count("number of tensors", MAX_TENSORS)
    keys = cursor.count("number of keys", MAX_KEYS)
    metadata = _read_metadata(cursor, keys)
    spans = _read_spans(cursor, metadata, tensors)
    check_spans(path, spans, 0, file.size)
    spans.sort(key=lambda span: span.offset)
    fingerprint = hashlib.sha256(file.buffer[: cursor.pos]).digest()
    return Checkpoint("gguf", path, metadata, fingerprint, [file], spans)


def _read_metadata(cursor: Cursor, keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(keys):
        key = cursor.name(f"key {index}")
        if key in metadata:
            raise cursor.error(f"key {key!r} occurs twice")
        metadata[key] = cursor.value(key)
    if metadata.get("split.count", 0) not in (0, 1):
        raise cursor.error(
            f"this is one of {metadata['split.count']!r:.60} parts; merge them first (llama-gguf-split --merge)"
        )
    return metadata


def _read_spans(cursor: Cursor, metadata: dict[str, Any], count: int) -> list[TensorSpan]:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8 != 0:
        raise cursor.error(f"general.alignment is {alignment!r:.60}; it must be a positive multiple of 8")
    records = [_read_record(cursor, index) for index in range(count)]
    base = -(-cursor.pos // alignment) * alignment
    for name, _, _, offset in records:
        if offset % alignment != 0:
            raise cursor.error(f"tensor {name!r} lies at offset {offset}, not a multiple of the alignment {alignment}")
    return [TensorSpan(name, shape, fmt, 0, base + offset) for name, shape, fmt, offset in records]


def _read_record(cursor: Cursor, index: int) -> tuple[str, tuple[int, ...], StorageFormat, int]:
    name = cursor.name(f"name of tensor {index}")
    what = f"tensor {name!r}"
    dims = cursor.u32(f"dimensions of {what}")
    if not 1 <= dims <= MAX_DIMS:
        raise cursor.error(f"{what} has {dims} dimensions; 1 to {MAX_DIMS} are possible")
    shape = tuple(cursor.u64(f"shape of {what}") for _ in range(dims))[::-1]  # ggml counts from the innermost outwards
    if 0 in shape:
        raise cursor.error(f"{what} has shape {list(shape)}, which holds no values")
    kind = cursor.u32(f"type of {what}")
    if kind not in FORMATS:
        stored = f"{_OTHER_TYPES.get(kind, 'an unknown type')} (ggml type {kind})"
        raise cursor.error(f"{what} is stored as {stored}; readable are {', '.join(FORMATS.values())}")
    fmt = FORMATS[kind]
    if shape[-1] % fmt.block_size != 0:
        raise cursor.error(f"{what} has rows of {shape[-1]} values, not whole {fmt} blocks of {fmt.block_size}")
    return name, shape, fmt, cursor.u64(f"offset of {what}")
