import json
from pathlib import Path

import pytest

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint import open_checkpoint

from .model_files import Gguf, safetensors

GGUF = Gguf(metadata=[("general.architecture", "str", "llama")]).build()
SAFETENSORS = safetensors({"w": ("F32", (1,), bytes(4))})


def directory(tmp_path: Path, **files: bytes) -> Path:
    """Files by name; ``__`` stands for the dot."""
    for name, data in files.items():
        (tmp_path / name.replace("__", ".")).write_bytes(data)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def test_a_directory_with_one_gguf_file(tmp_path: Path) -> None:
    with open_checkpoint(directory(tmp_path, any__gguf=GGUF, readme__md=b"hello")) as checkpoint:
        assert (checkpoint.kind, checkpoint.path.name, checkpoint.directory) == ("gguf", "any.gguf", tmp_path)


def test_the_model_file_is_preferred_to_a_second_copy(tmp_path: Path) -> None:
    path = directory(tmp_path, model__safetensors=SAFETENSORS, consolidated__safetensors=b"", pytorch_model__bin=b"")
    with open_checkpoint(str(path)) as checkpoint:
        assert checkpoint.path == tmp_path / "model.safetensors"


def test_the_makers_own_copy_is_no_second_model(tmp_path: Path) -> None:
    path = directory(tmp_path, weights__safetensors=SAFETENSORS, consolidated__safetensors=b"x")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.path == tmp_path / "weights.safetensors"
    (path / "weights.safetensors").unlink()
    (path / "consolidated.safetensors").write_bytes(SAFETENSORS)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.names == ["w"]


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    with open_checkpoint(directory(tmp_path, blob=GGUF) / "blob") as checkpoint:
        assert checkpoint.kind == "gguf"


def test_two_models_leave_a_choice(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"name one of a\.gguf, b\.gguf"):
        open_checkpoint(directory(tmp_path, a__gguf=GGUF, b__gguf=GGUF))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"])
def test_pickled_files_are_refused(tmp_path: Path, name: str) -> None:
    path = directory(tmp_path)
    (path / name).write_bytes(b"\x80\x04.")
    for start in (path, path / name):
        with pytest.raises(CheckpointError, match=f"{name} is a pickled checkpoint, which can run code"):
            open_checkpoint(start)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path, notes__txt=b"hello", empty__gguf=b"")
    with pytest.raises(CheckpointError, match=r"neither a \.gguf nor a \.safetensors"):
        open_checkpoint(path / "notes.txt")
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(path / "absent.gguf")
    with pytest.raises(CheckpointError, match=r"empty\.gguf is empty"):
        open_checkpoint(path)
    (path / "empty.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"holds no \.gguf or \.safetensors"):
        open_checkpoint(path)
