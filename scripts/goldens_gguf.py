"""Writes tests/data/families/NAME/gguf.json: what llama.cpp's own converter makes of the tiny checkpoints.

``metadata`` holds the file's key-value pairs but for those that describe the model to people; ``tensors`` each tensor's
shape and the first 16 digits of the SHA-256 of its float32 values. Tests write GGUF files of their own and hold them
against this (tests/models/gguf_families.py). Converted without quantising, and without a vocabulary.

Run: ``PYTHONPATH=. .venv-goldens/bin/python scripts/goldens_gguf.py LLAMA_CPP [NAME ...]``, after ``make goldens`` and
with the folder of llama.cpp's sources (``make peers`` leaves them in .peers).
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.models.families import FAMILIES, NAMES, write_checkpoint

VOCAB = 128


def main(llama_cpp: str, names: list[str]) -> None:
    sys.path[:0] = [llama_cpp, f"{llama_cpp}/gguf-py"]
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            path = convert(name, Path(folder))
            found = described(path)
        (FAMILIES / name / "gguf.json").write_text(found, "utf-8")
        print(f"{name}: {len(found)} bytes", flush=True)


def convert(name: str, folder: Path) -> Path:
    """The GGUF file of model ``name``, written into ``folder``."""
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from conversion.base import TextModel

    source = write_checkpoint(name, folder / name)
    tokens = {f"t{i}": i for i in range(VOCAB)}
    (source / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}), "utf-8")
    architecture = get_model_architecture(ModelBase.load_hparams(source, False), ModelType.TEXT)
    kind = get_model_class(architecture)
    for cls in (kind, *vars(kind).values()):
        if isinstance(cls, type) and issubclass(cls, TextModel):
            setattr(cls, "set_vocab", TextModel._set_vocab_none)  # noqa: B010, mypy refuses to assign to a method
    path = folder / "model.gguf"
    with torch.inference_mode():
        kind(source, gguf.LlamaFileType.ALL_F32, path).write()
    return path


def described(path: Path) -> str:
    import gguf

    reader = gguf.GGUFReader(path)
    metadata: dict[str, Any] = {}
    for key, field in reader.fields.items():
        if key == "general.architecture" or not key.startswith(("GGUF.", "general.")):
            value = field.contents()
            metadata[key] = value.tolist() if isinstance(value, np.ndarray) else value
    tensors = {}
    for tensor in reader.tensors:
        assert tensor.tensor_type == gguf.GGMLQuantizationType.F32, tensor.name
        digest = hashlib.sha256(np.ascontiguousarray(tensor.data).tobytes()).hexdigest()[:16]
        tensors[tensor.name] = [tensor.data.shape, digest]
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(tensors.items())]
    return f'{{"metadata": {json.dumps(metadata, indent=1)},\n"tensors": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
