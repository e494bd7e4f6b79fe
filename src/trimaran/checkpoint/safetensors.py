"""Reads safetensors models: one file, or shards with an index, beside a ``config.json``.

Source: the format description in the safetensors README. A file is the header's length (8 bytes, little-endian), a
JSON header ``{name: {dtype, shape, data_offsets}}``, and the data, which the tensors must fill without gap or overlap.
"""

import hashlib
import struct
from math import prod
from pathlib import Path
from typing import Any

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.checkpoint import Checkpoint, check_spans
from trimaran.checkpoint.json_file import parse_object, read_object
from trimaran.checkpoint.mapping import OpenFile
from trimaran.checkpoint.model_files import ModelFiles
from trimaran.checkpoint.tensors import StorageFormat, TensorSpan

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
MAX_HEADER = 100_000_000  # bytes, the limit of the format's own library
MAX_DIMS = 8

FORMATS = {fmt.value: fmt for fmt in StorageFormat if fmt.block_size == 1}


def read_safetensors(path: Path, opener: ModelFiles) -> Checkpoint:
    """Opens a ``.safetensors`` file, or the shards that an index names; ``config.json`` must lie beside it.

    Raises ``CheckpointError`` on a missing shard or config, on a header that is damaged, and on tensors that are
    missing, listed twice, overlapping or out of range.
    """
    config, digest = read_object(path.parent / CONFIG, opener.read)
    fingerprint = hashlib.sha256(digest)
    weight_map = _read_index(path, opener) if path.name.endswith(".json") else None
    shards = [path] if weight_map is None else [path.parent / name for name in sorted(set(weight_map.values()))]
    files: list[OpenFile] = []
    spans: list[TensorSpan] = []
    try:
        for number, shard in enumerate(shards):
            if not shard.is_file():
                raise CheckpointError(f"{shard} is missing: {path.name} names it; pull the model again")
            files.append(opener.open(shard))
            found, header = _read_shard(files[-1], number)
            fingerprint.update(header)
            spans += found
        if weight_map is not None:
            _check_index(path, weight_map, shards, spans)
        return Checkpoint("safetensors", path, config, fingerprint.digest(), files, spans, opener)
    except BaseException:
        for file in files:
            file.close()
        raise


def _read_index(path: Path, opener: ModelFiles) -> dict[str, str]:
    index, _ = read_object(path, opener.read)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{path}: tensor {name!r} is said to be in {file!r}, not a .safetensors file in the same directory"
            )
    return weight_map


def _check_index(path: Path, weight_map: dict[str, str], shards: list[Path], spans: list[TensorSpan]) -> None:
    found: dict[str, str] = {}
    for span in spans:
        shard = shards[span.file].name
        if span.name in found:
            raise CheckpointError(f"{path.parent}: tensor {span.name!r} is in {found[span.name]} and again in {shard}")
        found[span.name] = shard
        if span.name not in weight_map:
            raise CheckpointError(f"{path}: tensor {span.name!r} of {shard} is not in the index")
    for name, shard in weight_map.items():
        if found.get(name) != shard:
            where = f"in {found[name]}" if name in found else "in no shard"
            raise CheckpointError(f"{path}: the index puts tensor {name!r} into {shard}, but it is {where}")


def _read_shard(file: OpenFile, number: int) -> tuple[list[TensorSpan], bytes]:
    path = file.path
    if file.size < 8:
        raise CheckpointError(f"{path} is too short for a safetensors file ({file.size} bytes)")
    (length,) = struct.unpack("<Q", file.buffer_to(8)[:8])
    if length > MAX_HEADER:
        raise CheckpointError(
            f"{path} is not a safetensors file: its header would have {length} bytes (limit {MAX_HEADER})"
        )
    start = 8 + length
    if start > file.size:
        raise CheckpointError(f"{path} is cut short: its header has {length} bytes, the file {file.size}")
    header = file.buffer_to(start)[8:start]
    entries = parse_object(header, f"{path}: the header")
    entries.pop("__metadata__", None)
    spans = [_read_entry(path, name, entry, number, start) for name, entry in entries.items()]
    check_spans(path, spans, start, file.size)
    spans.sort(key=lambda span: (span.offset, span.end))
    _check_no_gap(path, spans, start, file.size)
    return spans, header


def _read_entry(path: Path, name: str, entry: Any, number: int, start: int) -> TensorSpan:
    what = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{what} needs exactly dtype, shape and data_offsets, not {entry!r:.100}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in FORMATS:
        raise CheckpointError(f"{what} has dtype {dtype!r:.40}; readable are {', '.join(FORMATS)}")
    if not _counts(shape) or len(shape) > MAX_DIMS:
        raise CheckpointError(f"{what} has shape {shape!r:.100}; expected up to {MAX_DIMS} sizes")
    if not _counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{what} has data_offsets {offsets!r:.100}; expected [begin, end]")
    span = TensorSpan(name, tuple(shape), FORMATS[dtype], number, start + offsets[0])
    if span.end != start + offsets[1]:
        raise CheckpointError(f"{what} of {dtype} {shape} takes {span.size} bytes; data_offsets {offsets} disagree")
    if prod(size or 1 for size in shape) * FORMATS[dtype].block_bytes >= 1 << 63:  # of no bytes, but no array either
        raise CheckpointError(f"{what} has shape {shape}, more than memory can address")
    return span


def _check_no_gap(path: Path, spans: list[TensorSpan], start: int, end: int) -> None:
    at = start
    for span in spans:
        if span.offset != at:
            raise CheckpointError(f"{path}: {span.offset - at} bytes before tensor {span.name!r} belong to no tensor")
        at = span.end
    if at != end:
        raise CheckpointError(f"{path}: the last {end - at} bytes belong to no tensor")


def _counts(value: Any) -> bool:
    """True for a list of whole numbers from 0 to 2^63 - 1."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
