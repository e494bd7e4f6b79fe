"""Writes tiny model files of every kind, right or wrong on purpose."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

GGML_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8,
    "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23,
    "I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28, "BF16": 30, "MXFP4": 39,
}  # fmt: skip
_SCALARS = {
    "u8": "B",
    "i8": "b",
    "u16": "H",
    "i16": "h",
    "u32": "I",
    "i32": "i",
    "f32": "f",
    "u64": "Q",
    "i64": "q",
    "f64": "d",
}
_VALUE_TYPES = {
    "u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6,
    "bool": 7, "str": 8, "array": 9, "u64": 10, "i64": 11, "f64": 12,
}  # fmt: skip


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(kind: str, item: Any) -> bytes:
    """A GGUF value without its type: ``kind`` is a scalar's name, or ``[kind]`` for an array."""
    if kind.startswith("["):
        inner = kind[1:-1]
        return type_id(inner) + struct.pack("<Q", len(item)) + b"".join(value(inner, each) for each in item)
    if kind == "str":
        return text(item)
    if kind == "bool":
        return struct.pack("<B", item)
    return struct.pack("<" + _SCALARS[kind], item)


def type_id(kind: str) -> bytes:
    return struct.pack("<I", _VALUE_TYPES["array" if kind.startswith("[") else kind])


@dataclass
class Tensor:
    """``shape`` in torch order; ``offset`` None places it behind the one before."""

    name: str
    shape: Sequence[int]
    kind: str | int
    data: bytes
    offset: int | None = None


@dataclass
class Gguf:
    """The parts of a GGUF file, each of which a test may get wrong."""

    metadata: list[tuple[str, str, Any]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    version: int = 3
    alignment: int = 32
    magic: bytes = b"GGUF"
    tensor_count: int | None = None
    key_count: int | None = None

    def build(self) -> bytes:
        keys = len(self.metadata) if self.key_count is None else self.key_count
        count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        head = self.magic + struct.pack("<IQQ", self.version, count, keys)
        for key, kind, item in self.metadata:
            head += text(key) + type_id(kind) + value(kind, item)
        body = b""
        for tensor in self.tensors:
            body += bytes(-len(body) % self.alignment)
            offset = len(body) if tensor.offset is None else tensor.offset
            body += tensor.data
            kind_id = tensor.kind if isinstance(tensor.kind, int) else GGML_TYPES[tensor.kind]
            head += text(tensor.name) + struct.pack("<I", len(tensor.shape))
            head += b"".join(struct.pack("<Q", size) for size in reversed(tensor.shape))
            head += struct.pack("<IQ", kind_id, offset)
        return head + bytes(-len(head) % self.alignment) + body


def safetensors(tensors: Mapping[str, tuple[str, Sequence[int], bytes]], **extra: Any) -> bytes:
    """A safetensors file of ``{name: (dtype, shape, data)}``; ``extra`` goes into the header as it is."""
    header: dict[str, Any] = dict(extra)
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    return raw_safetensors(json.dumps(header), body)


def raw_safetensors(header: str | bytes, body: bytes = b"") -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw)) + raw + body
