"""Finds out what a path holds and opens it."""

from pathlib import Path

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.checkpoint import Checkpoint
from trimaran.checkpoint.gguf import MAGIC, read_gguf
from trimaran.checkpoint.safetensors import INDEX, read_safetensors

PICKLED = frozenset({".bin", ".pt", ".pth", ".pkl", ".ckpt"})


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a GGUF file, a ``.safetensors`` file, an index of shards, or a directory that holds one of them.

    Raises ``CheckpointError`` when nothing fits, when a directory leaves a choice, and on every fault in the files.
    Pickled files are refused: loading one runs whatever code it holds.
    """
    path = Path(path)
    try:
        return _open(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        path = _choose(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist")
    if path.suffix in PICKLED:
        raise CheckpointError(f"{path} {_REFUSAL}")
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        return read_safetensors(path)
    with path.open("rb") as file:
        if path.suffix == ".gguf" or file.read(4) == MAGIC:
            return read_gguf(path)
    raise CheckpointError(f"{path} is neither a .gguf nor a .safetensors file")


_REFUSAL = "is a pickled checkpoint, which can run code when it is loaded; get or convert it to safetensors or GGUF"


def _choose(directory: Path) -> Path:
    if (directory / INDEX).is_file():
        return directory / INDEX
    if (directory / "model.safetensors").is_file():
        return directory / "model.safetensors"
    files = sorted(file for file in directory.iterdir() if file.is_file())
    models = [file for file in files if file.suffix in (".gguf", ".safetensors")]
    if len(models) == 1:
        return models[0]
    if models:
        raise CheckpointError(
            f"{directory} holds several models; name one of {', '.join(file.name for file in models)}"
        )
    for file in files:
        if file.suffix in PICKLED:
            raise CheckpointError(f"{file} {_REFUSAL}")
    raise CheckpointError(f"{directory} holds no .gguf or .safetensors file")
