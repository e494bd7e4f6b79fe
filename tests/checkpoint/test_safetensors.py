import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint import StorageFormat, open_checkpoint

from .model_files import raw_safetensors, safetensors

CONFIG = {"model_type": "llama", "hidden_size": 8}
A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.float16)


def model(tmp_path: Path, data: bytes, name: str = "model.safetensors") -> Path:
    """A directory with a config and one file of weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).write_bytes(data)
    return tmp_path


def sharded(tmp_path: Path, weight_map: dict[str, str], shards: dict[str, list[str]]) -> Path:
    """A directory whose shards hold the named tensors, each of four fp32 zeros."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for file, names in shards.items():
        (tmp_path / file).write_bytes(safetensors({name: ("F32", (4,), bytes(16)) for name in names}))
    return tmp_path


def test_every_format_is_a_view_of_whole_rows(tmp_path: Path) -> None:
    bf16 = np.array([[1.5], [-2.0]], ml_dtypes.bfloat16)
    data = safetensors(
        {
            "a": ("F32", (2, 3), A.tobytes()),
            "b": ("F16", (4,), B.tobytes()),
            "c": ("BF16", (2, 1, 1), bf16.tobytes()),
            "scalar": ("F32", (), A[0, 1].tobytes()),
            "empty": ("F32", (0, 7), b""),
        },
        __metadata__={"format": "pt"},
    )
    with open_checkpoint(model(tmp_path, data)) as checkpoint:
        assert checkpoint.kind == "safetensors"
        assert checkpoint.metadata == CONFIG
        assert checkpoint.directory == tmp_path
        found = {tensor.name: tensor for tensor in checkpoint.tensors()}
        assert {name: (t.shape, t.fmt, t.data.shape) for name, t in found.items()} == {
            "a": ((2, 3), StorageFormat.F32, (2, 12)),
            "b": ((4,), StorageFormat.F16, (1, 8)),
            "c": ((2, 1, 1), StorageFormat.BF16, (2, 2)),
            "scalar": ((), StorageFormat.F32, (1, 4)),
            "empty": ((0, 7), StorageFormat.F32, (0, 28)),
        }
        np.testing.assert_array_equal(found["a"].data.view(np.float32), A)
        np.testing.assert_array_equal(found["b"].data.view(np.float16)[0], B)
        np.testing.assert_array_equal(found["c"].data.view(ml_dtypes.bfloat16), bf16)
        assert not found["a"].data.flags.owndata
        assert not found["a"].data.flags.writeable


def test_shards_are_read_as_one_model(tmp_path: Path) -> None:
    path = sharded(
        tmp_path, {"x": "1.safetensors", "y": "2.safetensors"}, {"1.safetensors": ["x"], "2.safetensors": ["y"]}
    )
    for start in (path, path / "model.safetensors.index.json"):
        with open_checkpoint(start) as checkpoint:
            assert checkpoint.names == ["x", "y"]
            assert checkpoint.directory == tmp_path
            assert [tensor.data.tobytes() for tensor in checkpoint.tensors()] == [bytes(16)] * 2


def test_shards_are_those_that_the_index_names(tmp_path: Path) -> None:
    """MiniMax ships 125 files numbered up to 130; Mistral ships a copy of everything under other names."""
    shards = {f"model-{number:05}-of-00130.safetensors": [f"t{number}"] for number in (1, 2, 4, 130)}
    path = sharded(tmp_path, {names[0]: file for file, names in shards.items()}, shards)
    (path / "consolidated-00001-of-00002.safetensors").write_bytes(b"not read")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.names == ["t1", "t2", "t4", "t130"]


def test_tensors_of_no_use_to_a_text_model_can_be_skipped(tmp_path: Path) -> None:
    kinds = {"F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1}
    kinds |= {"U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}
    data = safetensors({kind: (kind, (2, 3), bytes(6 * size)) for kind, size in kinds.items()})
    with open_checkpoint(model(tmp_path, data)) as checkpoint:
        for tensor in checkpoint.tensors():
            assert tensor.array().shape == (2, 3)
            assert tensor.array().dtype.itemsize == kinds[tensor.name]


def test_the_digest_covers_config_and_every_shard(tmp_path: Path) -> None:
    path = sharded(
        tmp_path, {"x": "1.safetensors", "y": "2.safetensors"}, {"1.safetensors": ["x"], "2.safetensors": ["y"]}
    )

    def digest() -> str:
        with open_checkpoint(path) as checkpoint:
            return checkpoint.digest

    digests = [digest()]
    (path / "2.safetensors").write_bytes(safetensors({"y": ("F32", (4,), bytes(15) + b"\x01")}))
    digests.append(digest())
    (path / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 5.0}))
    digests.append(digest())
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("weight_map", "shards", "reason"),
    [
        ({"x": "1.safetensors", "y": "2.safetensors"}, {"1.safetensors": ["x"]}, "2.safetensors is missing"),
        (
            {"x": "1.safetensors", "y": "1.safetensors"},
            {"1.safetensors": ["x"]},
            "'y' into 1.safetensors, but it is in no",
        ),
        ({"x": "1.safetensors"}, {"1.safetensors": ["x", "z"]}, "'z' of 1.safetensors is not in the index"),
        (
            {"x": "1.safetensors", "y": "2.safetensors"},
            {"1.safetensors": ["x", "y"], "2.safetensors": ["y"]},
            "'y' is in 1.safetensors and again in 2.safetensors",
        ),
        (
            {"x": "2.safetensors", "y": "1.safetensors"},
            {"1.safetensors": ["x"], "2.safetensors": ["y"]},
            "'x' into 2.safetensors, but it is in 1.safetensors",
        ),
        ({"x": "../evil.safetensors"}, {}, "not a .safetensors file in the same directory"),
        ({"x": "/etc/passwd"}, {}, "not a .safetensors file in the same directory"),
        ({"x": "pytorch_model.bin"}, {}, "not a .safetensors file in the same directory"),
        ({}, {}, "no weight_map"),
    ],
)
def test_an_index_must_agree_with_its_shards(
    tmp_path: Path, weight_map: dict[str, str], shards: dict[str, list[str]], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        open_checkpoint(sharded(tmp_path, weight_map, shards))


def header(body: int = 0, **entries: Any) -> bytes:
    return raw_safetensors(json.dumps(entries), bytes(body))


def entry(shape: Any = (4,), offsets: Any = (0, 16), dtype: Any = "F32", **extra: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **extra}


WRONG: dict[str, tuple[bytes, str]] = {
    "too short": (b"1234567", "too short"),
    "another file": (b"PK\x03\x04" + b"\xff" * 100, "not a safetensors file"),
    "a header past the end": (raw_safetensors("{}")[:-1], "cut short"),
    "no JSON": (raw_safetensors("{"), "the header is not valid JSON"),
    "no text": (raw_safetensors(b"\xff\xff"), "the header is not valid JSON"),
    "no object": (raw_safetensors("[]"), "not a JSON object"),
    "deeper than the stack": (raw_safetensors("[" * 200_000), "nested too deeply"),
    "a number without end": (raw_safetensors('{"x": ' + "9" * 5000 + "}"), "not valid JSON"),
    "a name twice": (raw_safetensors('{"x": 1, "x": 2}'), "'x' occurs twice"),
    "a format that is not read": (
        header(16, w=entry((32,), dtype="F4")),
        "dtype 'F4'; readable are F64, F32, F16, BF16, F8",
    ),
    "a dtype that is none": (header(16, w=entry(dtype=["F32"])), "dtype"),
    "a missing key": (header(16, w={"dtype": "F32", "shape": [4]}), "needs exactly dtype, shape"),
    "an unknown key": (header(16, w=entry(more=1)), "needs exactly dtype, shape"),
    "no entry": (header(16, w=5), "needs exactly"),
    "a negative size": (header(16, w=entry((-4,))), "shape"),
    "a size that is no number": (header(16, w=entry((4.0,))), "shape"),
    "a true size": (header(4, w=entry((True,), (0, 4))), "shape"),
    "too many dimensions": (header(4, w=entry((1,) * 9, (0, 4))), "shape"),
    "negative offsets": (header(16, w=entry(offsets=(-16, 0))), "data_offsets"),
    "one offset": (header(16, w=entry(offsets=(16,))), "data_offsets"),
    "offsets backwards": (header(16, w=entry(offsets=(16, 0))), "disagree"),
    "offsets of another size": (header(20, w=entry(offsets=(0, 20))), "takes 16 bytes"),
    "out of range": (header(15, w=entry()), "cut short or damaged"),
    "beyond all memory": (header(16, w=entry((2**62, 2**62), (0, 2**62))), "disagree"),
    "empty, but beyond all memory": (header(0, w=entry((2**62, 2**62, 0), (0, 0))), "more than memory can address"),
    "a row beyond all memory": (header(0, w=entry((0, 2**62), (0, 0))), "more than memory can address"),
    "overlapping": (header(24, a=entry(), b=entry(offsets=(8, 24))), "'a' and 'b' overlap"),
    "a gap": (header(40, a=entry(), b=entry(offsets=(24, 40))), "8 bytes before tensor 'b' belong to no tensor"),
    "a tail": (header(17, w=entry()), "the last 1 bytes belong to no tensor"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_with_its_name_and_reason(tmp_path: Path, case: str) -> None:
    data, reason = WRONG[case]
    with pytest.raises(CheckpointError, match=reason) as raised:
        open_checkpoint(model(tmp_path, data))
    assert str(tmp_path / "model.safetensors") in str(raised.value)


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    data = safetensors({"a": ("F32", (2, 3), A.tobytes()), "b": ("F16", (4,), B.tobytes())})
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            open_checkpoint(model(tmp_path, data[:length]))


@settings(max_examples=500, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 1000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4))
def test_random_damage_never_does_more_than_raise(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(safetensors({"a": ("F32", (2, 3), A.tobytes()), "b": ("F16", (4,), B.tobytes())}))
    for at, new in changes:
        at %= len(data)
        data[at : at + len(new)] = new
    path = model(tmp_path_factory.getbasetemp(), bytes(data))
    with suppress(CheckpointError), open_checkpoint(path) as checkpoint:
        assert len(checkpoint.digest) == 64
        assert sum(tensor.data.nbytes for tensor in checkpoint.tensors()) == checkpoint.tensor_bytes


@pytest.mark.parametrize(
    ("config", "reason"),
    [(None, "config.json is missing"), ("nonsense", "not valid JSON"), ("[1]", "not a JSON object")],
)
def test_the_config_beside_the_weights_is_needed(tmp_path: Path, config: str | None, reason: str) -> None:
    path = model(tmp_path, safetensors({}))
    (path / "config.json").unlink()
    if config is not None:
        (path / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=reason):
        open_checkpoint(path)
