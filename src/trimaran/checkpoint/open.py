"""Finds out what a path holds and opens it."""

from pathlib import Path

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.checkpoint import Checkpoint
from trimaran.checkpoint.gguf import MAGIC, read_gguf
from trimaran.checkpoint.gguf_parts import is_later_part
from trimaran.checkpoint.model_files import AS_THEY_ARE, ModelFiles
from trimaran.checkpoint.safetensors import INDEX, read_safetensors

_SAFETENSORS = (".safetensors", ".safetensors.index.json")
_MODELS = (".gguf", ".safetensors")
_NO_MODEL = "holds no .gguf or .safetensors file"
PICKLED = frozenset({".bin", ".pt", ".pth", ".pkl", ".ckpt"})


def open_checkpoint(path: str | Path, files: ModelFiles = AS_THEY_ARE) -> Checkpoint:
    """Opens a GGUF file, a ``.safetensors`` file, an index of shards, or a directory that holds one of them.

    ``files`` says how (``verify.model_files``) and is closed with the checkpoint.

    Raises ``CheckpointError`` when nothing fits, when a directory leaves a choice, and on every fault in the files.
    Pickled files are refused: loading one runs whatever code it holds.
    """
    try:
        file = model_file(Path(path))
        try:
            return read_safetensors(file, files) if file.name.endswith(_SAFETENSORS) else read_gguf(file, files)
        except OSError as error:
            raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error
    except BaseException as error:
        try:
            if isinstance(error, CheckpointError):
                files.check()  # that the file was tampered with says more than what is wrong in it
        finally:
            files.close()
        raise


def model_file(path: Path) -> Path:
    """The file that ``open_checkpoint`` reads for ``path``, found by names and first bytes; raises as it does."""
    try:
        return _find(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


def require_model(path: Path) -> None:
    """Raises ``CheckpointError`` unless ``path`` is a model's file, or a folder that holds one or several of them."""
    try:
        if not path.is_dir():
            _find(path)
        elif not any(file.suffix in _MODELS for file in path.iterdir()):
            raise CheckpointError(f"{path} {_NO_MODEL}")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


def _find(path: Path) -> Path:
    if path.is_dir():
        path = _choose(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist")
    if path.suffix in PICKLED:
        raise CheckpointError(f"{path} {_REFUSAL}")
    if path.name.endswith((".gguf", *_SAFETENSORS)):
        return path
    with path.open("rb") as file:
        if file.read(4) == MAGIC:
            return path
    raise CheckpointError(f"{path} is neither a .gguf nor a .safetensors file")


_REFUSAL = "is a pickled checkpoint, which can run code when it is loaded; get or convert it to safetensors or GGUF"


def _choose(directory: Path) -> Path:
    if (directory / INDEX).is_file():
        return directory / INDEX
    if (directory / "model.safetensors").is_file():
        return directory / "model.safetensors"
    files = sorted(file for file in directory.iterdir() if file.is_file())
    models = [file for file in files if file.suffix in _MODELS and not is_later_part(file.name)]
    if len(models) > 1:  # some folders also hold the maker's own copy
        models = [file for file in models if not file.name.startswith("consolidated")]
    if len(models) == 1:
        return models[0]
    if models:
        raise CheckpointError(
            f"{directory} holds several models; name one of {', '.join(file.name for file in models)}"
        )
    for file in files:
        if file.suffix in PICKLED:
            raise CheckpointError(f"{file} {_REFUSAL}")
    raise CheckpointError(f"{directory} {_NO_MODEL}")
