"""Files for ``readers.py``: right ones of every kind, damaged."""

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

from trimaran.bench.fuzz.damage import damaged_bytes, damaged_json, damaged_text, json_bytes
from trimaran.bench.fuzz.model_samples import GgufSample, file_bytes, folder_sample, gguf_sample
from trimaran.bench.fuzz.template_samples import SOURCES, WORDS, wild_template
from trimaran.checkpoint.file_record import MANIFEST
from trimaran.checkpoint.verify import write_model_manifest

Case = tuple[str, Path, bool]  # its kind, what to read, and whether it has to be refused
TOKENIZERS, TEMPLATES = "tokenizers/tiny", "templates"  # in a corpus: folders of tokenizer files, and Jinja files


def write_case(random: Random, folder: Path, corpus: Path | None = None) -> Case:
    """Writes one case into the empty ``folder``. ``corpus`` has more to begin with, such as ``tests/data``."""
    kinds = {"gguf": _gguf, "folder": _folder, "manifest": _manifest}
    kind = random.choice(("gguf", "gguf", "folder", "folder", "manifest", "template", "template", "tokenizer"))
    if kind == "tokenizer" and corpus is not None:
        return _tokenizer(random, folder, corpus / TOKENIZERS)
    if kind in kinds:
        return kinds[kind](random, folder)
    return _template(random, folder, None if corpus is None else corpus / TEMPLATES)


def _gguf(random: Random, folder: Path) -> Case:
    sample = gguf_sample()
    path = folder / "model.gguf"
    if random.random() < 0.6:
        metadata = damaged_json(random, sample.metadata)
        data = GgufSample(
            {str(key): value for key, value in metadata.items()} if isinstance(metadata, dict) else {}, sample.tensors
        ).build()
    else:
        whole = sample.build()
        body = sum(len(data) + -len(data) % 32 for _, _, data in sample.tensors.values())
        data = damaged_bytes(random, whole, head=len(whole) - body)
    path.write_bytes(data)
    return "gguf", path, False


def _folder(random: Random, folder: Path) -> Case:
    files = dict(folder_sample())
    name = random.choice(list(files))
    content = files[name]
    if random.random() < 0.25:
        raw = file_bytes(content)
        head = 8 + struct.unpack("<Q", raw[:8])[0] if isinstance(content, tuple) else None
        data = damaged_bytes(random, raw, head)
    elif isinstance(content, tuple):
        data = file_bytes((damaged_json(random, content[0]), content[1]))
    else:
        data = json_bytes(random, damaged_json(random, content))
    _write(folder, files | {name: data})
    return "folder", folder, False


def _manifest(random: Random, folder: Path) -> Case:
    """A damaged manifest, or a file that is no longer what a right one says."""
    files = {"config.json": b"{}", "tokenizer.json": b"{} ", "model.safetensors": random.randbytes(300)}
    _write(folder, files)
    write_model_manifest(folder)
    if random.random() < 0.3:
        name = random.choice(list(files))
        damaged = damaged_bytes(random, files[name])
        (folder / name).write_bytes(damaged)
        return "manifest", folder, damaged != files[name]
    path = folder / MANIFEST
    right = path.read_bytes()
    value = json.loads(right)
    data = damaged_bytes(random, right) if random.random() < 0.4 else json_bytes(random, damaged_json(random, value))
    path.write_bytes(data)
    try:
        same = json.loads(data) == value
    except (ValueError, RecursionError):
        same = False
    return "manifest", folder, not same


def _template(random: Random, folder: Path, corpus: Path | None) -> Case:
    if random.random() < 0.5:
        text = wild_template(random)
    else:
        sources = [*SOURCES, *(file.read_text() for file in sorted(corpus.glob("*.jinja")))] if corpus else SOURCES
        text = damaged_text(random, random.choice(sources), WORDS)
    (folder / "chat_template.jinja").write_bytes(text.encode("utf-8", "surrogateescape"))
    return "template", folder / "chat_template.jinja", False


def _tokenizer(random: Random, folder: Path, corpus: Path) -> Case:
    whole = random.choice(sorted(path for path in corpus.iterdir() if path.is_dir()))
    files = {file.name: file.read_bytes() for file in sorted(whole.iterdir())}
    name = random.choice(list(files))
    if name.endswith(".json") and random.random() < 0.7:
        files[name] = json_bytes(random, damaged_json(random, json.loads(files[name])))
    else:
        files[name] = damaged_bytes(random, files[name])
    _write(folder, files)
    return "tokenizer", folder, False


def _write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else file_bytes(content))
