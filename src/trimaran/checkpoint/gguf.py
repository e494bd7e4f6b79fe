"""Reads GGUF files, versions 2 and 3.

Source: ``docs/gguf.md`` in ggml. All numbers are little-endian. A file is a header (magic, version, counts), key-value
pairs, one record per tensor, padding to ``general.alignment``, and the tensors' data. Nothing in a file is trusted:
every count, length and offset is checked against the file's size before it is used.
"""

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.checkpoint import Checkpoint, check_spans
from trimaran.checkpoint.gguf_parts import part_names
from trimaran.checkpoint.gguf_values import Cursor
from trimaran.checkpoint.mapping import OpenFile
from trimaran.checkpoint.model_files import ModelFiles
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


@dataclass(frozen=True)
class _Part:
    """What one file holds. ``fingerprint`` is the hash of all of it that is not tensor data."""

    metadata: dict[str, Any]
    spans: list[TensorSpan]
    fingerprint: bytes


def read_gguf(path: Path, opener: ModelFiles) -> Checkpoint:
    """Opens a GGUF file, or all parts of a model of which it is one (the metadata are those of the first).

    Raises ``CheckpointError`` that says what is wrong and at which byte.
    """
    files = [opener.open(path)]
    try:
        part = _read(path, files[0], 0)
        count = part.metadata.get(_COUNT, 1)
        if not isinstance(count, int) or count < 2:
            return Checkpoint("gguf", path, part.metadata, part.fingerprint, files, part.spans, opener)
        files[0].close()
        paths = _part_paths(path, count)
        files[:] = [opener.open(each) for each in paths]
        parts = [_read(each, file, number) for number, (each, file) in enumerate(zip(paths, files, strict=True))]
        spans = [span for part in parts for span in part.spans]
        _check_parts(paths, parts, spans)
        fingerprint = hashlib.sha256(b"".join(part.fingerprint for part in parts)).digest()
        return Checkpoint("gguf", paths[0], parts[0].metadata, fingerprint, files, spans, opener)
    except BaseException:
        for file in files:
            file.close()
        raise


def _part_paths(path: Path, count: int) -> list[Path]:
    paths = [path.with_name(name) for name in part_names(path.name)]
    if len(paths) != count:
        raise CheckpointError(
            f"{path} is one of {count} parts, but is not called NAME-00001-of-{count:05}.gguf and so on"
        )
    for each in paths:
        if not each.is_file():
            raise CheckpointError(f"{each} is missing: {path.name} is one of {count} parts; pull the model again")
    return paths


def _check_parts(paths: list[Path], parts: list[_Part], spans: list[TensorSpan]) -> None:
    for number, (path, part) in enumerate(zip(paths, parts, strict=True)):
        told = part.metadata.get(_NUMBER), part.metadata.get(_COUNT)
        if told != (number, len(parts)):
            raise CheckpointError(f"{path} says that it is part {told[0]!r:.20} of {told[1]!r:.20}; parts count from 0")
    found: dict[str, Path] = {}
    for span in spans:
        if span.name in found:
            raise CheckpointError(f"tensor {span.name!r} is in {found[span.name]} and again in {paths[span.file]}")
        found[span.name] = paths[span.file]
    announced = parts[0].metadata.get(_TENSORS, len(spans))
    if announced != len(spans):
        raise CheckpointError(f"{paths[0]} announces {announced!r:.20} tensors in all parts; there are {len(spans)}")


_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def _read(path: Path, file: OpenFile, number: int) -> _Part:
    cursor = Cursor(file)
    if (magic := file.buffer_to(4)[:4]) != MAGIC:
        raise CheckpointError(f"{path} is not a GGUF file: it starts with {magic!r}")
    cursor.pos = 4
    version = cursor.u32("version")
    if version not in VERSIONS:
        if struct.pack(">I", version) in (struct.pack("<I", v) for v in VERSIONS):
            raise CheckpointError(f"{path} is a big-endian GGUF file; only little-endian files are read")
        raise CheckpointError(f"{path} has GGUF version {version}; versions 2 and 3 are read")
    tensors = cursor.count("number of tensors", MAX_TENSORS)
    keys = cursor.count("number of keys", MAX_KEYS)
    metadata = _read_metadata(cursor, keys)
    spans = _read_spans(cursor, metadata, tensors, number)
    check_spans(path, spans, 0, file.size)
    spans.sort(key=lambda span: span.offset)
    return _Part(metadata, spans, hashlib.sha256(file.buffer_to(cursor.pos)[: cursor.pos]).digest())


def _read_metadata(cursor: Cursor, keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(keys):
        key = cursor.name(f"key {index}")
        if key in metadata:
            raise cursor.error(f"key {key!r} occurs twice")
        metadata[key] = cursor.value(key)
    return metadata


def _read_spans(cursor: Cursor, metadata: dict[str, Any], count: int, file: int) -> list[TensorSpan]:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8 != 0:
        raise cursor.error(f"general.alignment is {alignment!r:.60}; it must be a positive multiple of 8")
    records = [_read_record(cursor, index) for index in range(count)]
    base = -(-cursor.pos // alignment) * alignment
    for name, _, _, offset in records:
        if offset % alignment != 0:
            raise cursor.error(f"tensor {name!r} lies at offset {offset}, not a multiple of the alignment {alignment}")
    return [TensorSpan(name, shape, fmt, file, base + offset) for name, shape, fmt, offset in records]


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
