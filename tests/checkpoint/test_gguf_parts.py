"""GGUF models in several files."""

from pathlib import Path
from typing import Any

import pytest

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.gguf_parts import is_later_part, part_names

from .model_files import Gguf, Tensor

NAMES = [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def part(number: Any, tensors: list[str], count: int = 3, **more: Any) -> bytes:
    """Each tensor holds eight numbers, all of them the tensor's own."""
    keys = [("split.no", "u16", number), ("split.count", "u16", count)]
    keys += [(key.replace("__", "."), "i32", value) for key, value in more.items()]
    data = [Tensor(name, (8,), "F32", name.encode() * 32) for name in tensors]
    return Gguf(metadata=keys, tensors=data).build()


def save(tmp_path: Path, *parts: bytes) -> Path:
    for name, data in zip(NAMES, parts, strict=False):
        (tmp_path / name).write_bytes(data)
    return tmp_path


def good(tmp_path: Path) -> Path:
    first = part(0, ["a"], split__tensors__count=3, general__size=5)
    return save(tmp_path, first, part(1, []), part(2, ["b", "c"]))


@pytest.mark.parametrize("start", ["", *NAMES])
def test_any_part_opens_the_model(tmp_path: Path, start: str) -> None:
    with open_checkpoint(good(tmp_path) / start) as checkpoint:
        assert checkpoint.path == tmp_path / NAMES[0]
        assert checkpoint.metadata["general.size"] == 5
        assert [(t.name, t.data.tobytes()) for t in checkpoint.tensors()] == [
            (name, name.encode() * 32) for name in "abc"
        ]
        assert checkpoint.tensor_bytes == 96


def test_the_digest_covers_every_part(tmp_path: Path) -> None:
    with open_checkpoint(good(tmp_path)) as checkpoint:
        digest = checkpoint.digest
    save(tmp_path, part(0, ["a"], split__tensors__count=3, general__size=5), part(1, [], more=1))
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.digest != digest


WRONG = {
    "a part missing": ([part(0, ["a"]), part(1, ["b"])], rf"{NAMES[2]} is missing: {NAMES[0]} is one of 3 parts"),
    "parts swapped": ([part(1, []), part(0, []), part(2, [])], rf"{NAMES[0]} says that it is part 1 of 3"),
    "another count": ([part(0, []), part(1, [], count=4), part(2, [])], rf"{NAMES[1]} says that it is part 1 of 4"),
    "no part": ([part(0, []), Gguf().build(), part(2, [])], rf"{NAMES[1]} says that it is part None of None"),
    "a tensor twice": ([part(0, ["a"]), part(1, []), part(2, ["a"])], rf"'a' is in .*{NAMES[0]} and again in"),
    "a tensor missing": (
        [part(0, ["a"], split__tensors__count=3), part(1, []), part(2, ["b"])],
        rf"{NAMES[0]} announces 3 tensors in all parts; there are 2",
    ),
    "a damaged part": ([part(0, []), part(1, [])[:30], part(2, [])], rf"{NAMES[1]}.* cut short"),
    "parts without end": ([part(0, [], count=60000)], "one of 60000 parts, but is not called"),
}


@pytest.mark.parametrize("case", WRONG)
def test_parts_that_do_not_belong_together_are_named(tmp_path: Path, case: str) -> None:
    parts, message = WRONG[case]
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(save(tmp_path, *parts) / NAMES[0])


def test_names() -> None:
    assert part_names("q4/m-00002-of-00003.gguf") == [f"q4/{name}" for name in NAMES]
    for name in ("m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-2-of-3.gguf"):
        assert part_names(name) == [name]
    assert [is_later_part(name) for name in (*NAMES, "m.gguf")] == [False, True, True, False]
