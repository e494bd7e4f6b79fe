"""Compresses a checkpoint into a folder that appears when it is whole."""

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trimaran.base.errors import ConfigError
from trimaran.checkpoint import Checkpoint
from trimaran.checkpoint.file_record import OURS
from trimaran.checkpoint.open import PICKLED
from trimaran.checkpoint.safetensors import CONFIG
from trimaran.checkpoint.verify import write_model_manifest
from trimaran.compress.calibrated import fill_calibrated
from trimaran.compress.fill import Progress, fill
from trimaran.compress.plan import Item, Report, make_plan
from trimaran.compress.recipe import CompensatingRecipe, Recipe
from trimaran.compress.shards import Shards, size_of
from trimaran.compress.source import read_source

_WEIGHTS = PICKLED | {".safetensors", ".gguf", ".h5", ".msgpack", ".onnx"}
_STALE = ("quantization_config", "compression_config")


def compress(
    checkpoint: Checkpoint,
    recipe: Recipe,
    folder: Path,
    *,
    experts_only: bool = False,
    max_shard: int = 4 << 30,
    report: Progress | None = None,
    texts: Sequence[Sequence[Sequence[int]]] = (),
    add_files: Callable[[Path], None] | None = None,
) -> Report:
    """Writes ``checkpoint`` to ``folder``, which must not exist; ``report`` hears of bytes written and in all.

    ``texts`` (``calibration.texts.cut``) run through the model to compensate the rounding.
    What stays is copied bit by bit; where the source had compressed it, it is written in bf16. A GGUF file comes out in
    Hugging Face's layout; ``add_files`` puts its tokenizer into the folder. Raises ``ConfigError`` when the folder is
    there or the disk is too small, ``UnsupportedError`` on sources that have no more bits than the recipe, GGUF files
    of 4 bits or fewer or of a family that is not written, and where nothing would be compressed, ``CheckpointError`` on
    weights that are not finite.
    """
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} exists already; name a new folder")
    source = read_source(checkpoint)
    items, done = make_plan(source, recipe, experts_only)
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if done.bytes_after > free:
        raise ConfigError(f"{folder} needs {done.bytes_after / 1e9:.2f} GB, but its disk has {free / 1e9:.2f} GB free")
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with Shards(partial, [item.outputs for item in items], max_shard) as shards:
            rest, told = items, report or _silent
            if texts:
                assert isinstance(recipe, CompensatingRecipe), recipe
                rest = fill_calibrated(source, texts, items, recipe, shards, done, told, partial)
            left = sum(size_of(output) for item in rest for output in item.outputs)
            fill(checkpoint, rest, recipe, shards, done, told, done.bytes_after - left)
        if checkpoint.kind == "safetensors":
            _copy_files(checkpoint, partial)
        if add_files is not None:
            add_files(partial)
        _write_config(source.config, recipe, items, partial / CONFIG)
        write_model_manifest(partial)
        partial.chmod(0o755)
        partial.rename(folder)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return done


def _silent(_done: int, _total: int | None) -> None:
    pass


def _copy_files(checkpoint: Checkpoint, folder: Path) -> None:
    """Tokenizer, chat template, licence and whatever else lies beside the weights."""
    for file in sorted(checkpoint.directory.iterdir()):
        weights = file.suffix in _WEIGHTS or file.name.endswith(".safetensors.index.json")
        if file.is_file() and not weights and not file.name.startswith(".") and file.name not in OURS | {CONFIG}:
            shutil.copyfile(file, folder / file.name)


def _write_config(source: dict[str, Any], recipe: Recipe, items: Sequence[Item], path: Path) -> None:
    config = {key: value for key, value in source.items() if key not in _STALE}
    if isinstance(text := config.get("text_config"), dict):
        config["text_config"] = {key: value for key, value in text.items() if key not in _STALE}
    kept = {
        item.tensor.name.removesuffix(".weight")
        for item in items
        if item.kept and len(item.shape) >= 2 and item.tensor.name.endswith(".weight")
    }
    config["quantization_config"] = recipe.config(sorted(kept | {"lm_head"}))
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
