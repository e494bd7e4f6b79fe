import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint import Checkpoint, StorageFormat, gguf, open_checkpoint

from .model_files import Gguf, Tensor, text

FORMATS = list(gguf.FORMATS.values())


def save(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return path


def blocks(fmt: StorageFormat, rows: int, cols: int) -> bytes:
    return np.random.default_rng(7).integers(0, 256, rows * fmt.row_bytes(cols), np.uint8).tobytes()


def sample() -> Gguf:
    """A file with a bit of everything."""
    return Gguf(
        metadata=[
            ("general.architecture", "str", "llama"),
            ("llama.block_count", "u32", 2),
            ("tokenizer.ggml.tokens", "[str]", ["<s>", "hé", ""]),
            ("tokenizer.ggml.scores", "[f32]", [0.5, -1.0, 0.0]),
            ("flag", "bool", 1),
            ("nested", "[[u8]]", [[1, 2], []]),
        ],
        tensors=[
            Tensor("embed", (3, 64), "Q8_0", blocks(StorageFormat.Q8_0, 3, 64)),
            Tensor("norm", (5,), "F32", np.arange(5, dtype=np.float32).tobytes()),
            Tensor("experts", (2, 3, 256), "Q6_K", blocks(StorageFormat.Q6_K, 6, 256)),
        ],
    )


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_is_a_view_of_whole_rows(tmp_path: Path, fmt: StorageFormat) -> None:
    data = blocks(fmt, 3, 512)
    path = save(tmp_path, Gguf(tensors=[Tensor("w", (3, 512), fmt.value, data)]).build())
    with open_checkpoint(path) as checkpoint:
        (tensor,) = checkpoint.tensors()
        assert (tensor.name, tensor.shape, tensor.fmt) == ("w", (3, 512), fmt)
        assert tensor.data.shape == (3, fmt.row_bytes(512))
        assert tensor.data.tobytes() == data
        assert not tensor.data.flags.owndata
        assert not tensor.data.flags.writeable


def test_shapes_are_in_torch_order_and_rows_are_all_but_the_last_dimension(tmp_path: Path) -> None:
    with open_checkpoint(save(tmp_path, sample().build())) as checkpoint:
        assert checkpoint.kind == "gguf"
        assert [(t.name, t.shape, t.data.shape) for t in checkpoint.tensors()] == [
            ("embed", (3, 64), (3, 68)),
            ("norm", (5,), (1, 20)),
            ("experts", (2, 3, 256), (6, 210)),
        ]
        assert checkpoint.tensor_bytes == 3 * 68 + 20 + 6 * 210
        assert [t.data.nbytes for t in checkpoint.tensors()] == [204, 20, 1260]


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_are_plain_values(tmp_path: Path, version: int) -> None:
    source = sample()
    source.version = version
    with open_checkpoint(save(tmp_path, source.build())) as checkpoint:
        assert checkpoint.metadata == {
            "general.architecture": "llama",
            "llama.block_count": 2,
            "tokenizer.ggml.tokens": ["<s>", "hé", ""],
            "tokenizer.ggml.scores": [0.5, -1.0, 0.0],
            "flag": True,
            "nested": [[1, 2], []],
        }
        assert checkpoint.metadata["flag"] is True


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("u8", 0, 255),
        ("i8", -128, 127),
        ("u16", 0, 65535),
        ("i16", -32768, 32767),
        ("u32", 0, 2**32 - 1),
        ("i32", -(2**31), 2**31 - 1),
        ("u64", 0, 2**64 - 1),
        ("i64", -(2**63), 2**63 - 1),
        ("f32", -1.5, 2.0**100),
        ("f64", -0.1, 1e300),
        ("bool", False, True),
        ("str", "", "snow ☃ and \x00"),
    ],
)
def test_every_value_type_alone_and_in_an_array(tmp_path: Path, kind: str, low: Any, high: Any) -> None:
    metadata = [("low", kind, low), ("both", f"[{kind}]", [low, high]), ("none", f"[{kind}]", []), ("high", kind, high)]
    with open_checkpoint(save(tmp_path, Gguf(metadata=metadata).build())) as checkpoint:
        assert checkpoint.metadata == {"low": low, "both": [low, high], "none": [], "high": high}
        assert type(checkpoint.metadata["high"]) is type(high)


def test_alignment_is_the_file_s_own(tmp_path: Path) -> None:
    norm = np.arange(3, dtype=np.float32)
    tensors = [Tensor(name, (3,), "F32", norm.tobytes()) for name in "ab"]
    source = Gguf([("general.alignment", "u32", 64)], tensors, alignment=64)
    with open_checkpoint(save(tmp_path, source.build())) as checkpoint:
        for tensor in checkpoint.tensors():
            np.testing.assert_array_equal(tensor.data.view(np.float32)[0], norm)


def wrong(**changes: Any) -> bytes:
    source = sample()
    for name, changed in changes.items():
        setattr(source, name, changed)
    return source.build()


def one(shape: tuple[int, ...] = (2, 32), kind: str | int = "Q8_0", offset: int | None = None) -> bytes:
    return Gguf(tensors=[Tensor("w", shape, kind, bytes(68), offset)]).build()


F32X8 = bytes(32)
WRONG: dict[str, tuple[bytes, str]] = {
    "another file": (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
    "version 1": (wrong(version=1), "GGUF version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "endless keys": (wrong(key_count=2**63), "number of keys"),
    "endless tensors": (wrong(tensor_count=2**63), "number of tensors"),
    "too many tensors": (wrong(tensor_count=1000), "cut short"),
    "a key twice": (wrong(metadata=[("k", "u8", 1), ("k", "u8", 2)]), "'k' occurs twice"),
    "a tensor twice": (wrong(tensors=[Tensor("t", (8,), "F32", F32X8)] * 2), "'t' occurs twice"),
    "a boolean of 2": (wrong(metadata=[("k", "bool", 2)]), "neither 0 nor 1"),
    "booleans of 2": (wrong(metadata=[("k", "[bool]", [1, 2])]), "neither 0 nor 1"),
    "a text that is no text": (wrong(metadata=[("k", "str", b"\xff\xfe")]), "k: a string is not UTF-8"),
    "one of several files": (wrong(metadata=[("split.count", "u16", 3)]), "one of 3 parts, but is not called NAME-"),
    "arrays without end": (wrong(metadata=[("k", "[[[[[u8]]]]]", [[[[[1]]]]])]), "more than 4 deep"),
    "alignment 0": (wrong(metadata=[("general.alignment", "u32", 0)]), "alignment is 0"),
    "alignment text": (wrong(metadata=[("general.alignment", "str", "x")]), "alignment is 'x'"),
    "alignment list": (wrong(metadata=[("general.alignment", "[u32]", [32])]), r"alignment is \[32\]"),
    "unknown value type": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 99), "value type 99"),
    "array of unknown type": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 77, 1),
        "unknown value type 77",
    ),
    "a huge array": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 2**62) + bytes(64),
        "length of k",
    ),
    "an array past the end": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 20) + bytes(64),
        "ends within k",
    ),
    "a huge key": (wrong(metadata=[("k" * 70000, "u8", 1)]), "key 0 has 70000 characters"),
    "a huge text": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**64 - 1) + bytes(64),
        "string of 18446744073709551615 bytes",
    ),
    "a format that is not read": (one(kind=21), r"'w' is stored as IQ3_S \(ggml type 21\); readable are F32"),
    "a format unheard of": (one(kind=4096), "unknown type"),
    "half a block": (one(shape=(2, 33)), "33 values, not whole Q8_0 blocks of 32"),
    "no values": (one(shape=(0, 32)), "holds no values"),
    "no dimensions": (one(shape=()), "0 dimensions"),
    "five dimensions": (one(shape=(1, 1, 1, 1, 64)), "5 dimensions"),
    "a size beyond all memory": (one(shape=(2**62, 2**62)), "cut short or damaged"),
    "past the end": (one(offset=32), "cut short or damaged"),
    "far past the end": (one(offset=2**64 - 32), "cut short or damaged"),
    "not aligned": (one(offset=8), "not a multiple of the alignment"),
    "overlapping": (
        wrong(tensors=[Tensor("a", (16,), "F32", bytes(64), 0), Tensor("b", (8,), "F32", F32X8, 32)]),
        "'a' and 'b' overlap",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_with_its_name_and_reason(tmp_path: Path, case: str) -> None:
    data, reason = WRONG[case]
    path = save(tmp_path, data)
    with pytest.raises(CheckpointError, match=reason) as raised:
        open_checkpoint(path)
    assert str(path) in str(raised.value)


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    data = sample().build()
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            open_checkpoint(save(tmp_path, data[:length]))


def read_all(checkpoint: Checkpoint) -> None:
    for tensor in checkpoint.tensors():
        assert tensor.data.sum() >= 0
    assert len(checkpoint.digest) == 64


@settings(max_examples=500, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4))
def test_random_damage_never_does_more_than_raise(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(sample().build())
    for at, new in changes:
        at %= len(data)
        data[at : at + len(new)] = new
    path = save(tmp_path_factory.getbasetemp(), bytes(data))
    with suppress(CheckpointError), open_checkpoint(path) as checkpoint:
        read_all(checkpoint)


def test_the_digest_tells_models_apart(tmp_path: Path) -> None:
    rows = 64 * 4096  # bytes of the tensor
    original = Gguf([("key", "u32", 1)], [Tensor("w", (64, 1024), "F32", bytes(rows))]).build()
    body = len(original) - rows
    path = tmp_path / "model.gguf"

    def digest(data: bytes) -> str:
        path.write_bytes(data)
        with open_checkpoint(path) as checkpoint:
            return checkpoint.digest

    value_at, name_at = original.index(b"key") + 3 + 4, original.index(text("w")) + 8
    digests = {digest(original)}
    for at in (value_at, name_at, body, body + rows // 2, len(original) - 1):
        digests.add(digest(original[:at] + bytes([original[at] ^ 1]) + original[at + 1 :]))
    assert len(digests) == 6
    assert digest(original) in digests


def test_the_digest_does_not_depend_on_the_file_s_name(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    for path in (first, second):
        path.write_bytes(sample().build())
    with open_checkpoint(first) as one_file, open_checkpoint(second) as other_file:
        assert one_file.digest == other_file.digest


def test_views_outlive_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path, sample().build()))
    views = [tensor.data for tensor in checkpoint.tensors()]
    checkpoint.close()
    checkpoint.close()
    np.testing.assert_array_equal(views[1].view(np.float32)[0], np.arange(5))


def test_the_real_model_opens_and_release_gives_its_memory_back(smollm2: Path) -> None:
    with open_checkpoint(smollm2) as checkpoint:
        assert checkpoint.metadata["general.architecture"] == "llama"
        assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 49152
        assert len(checkpoint.metadata["tokenizer.ggml.merges"]) == 48900
        shapes = {tensor.name: (tensor.shape, tensor.fmt) for tensor in checkpoint.tensors()}
        assert len(shapes) == 272
        assert shapes["token_embd.weight"] == ((49152, 576), StorageFormat.Q8_0)
        assert shapes["blk.29.ffn_gate.weight"] == ((1536, 576), StorageFormat.Q4_1)
        read_all(checkpoint)
        before = psutil.Process().memory_info().rss
        checkpoint.release()
        freed = before - psutil.Process().memory_info().rss
        assert freed > 0.8 * checkpoint.tensor_bytes
