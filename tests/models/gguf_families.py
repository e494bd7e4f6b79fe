"""The tiny checkpoints as GGUF files, as llama.cpp's converter makes them.

``gguf.json`` of a checkpoint lists what that converter made of it (scripts/goldens_gguf.py): key-value pairs, and every
tensor's shape and digest. What is written here is held against it.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from trimaran.kernels.rope import inverse_frequencies

from .families import FAMILIES, float_tensors
from .running import load

ROPE_FACTORS = "rope_freqs.weight"
F32 = gguf.GGMLQuantizationType.F32
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")
_LIKE = {"deepseek32": "glm-dsa", "deepseek2": "glm-dsa"}  # the package has all their names only for the latter
_PERMUTED = ("llama", "mistral3")  # architectures with interleaved rope, whose files were half-split


def listed(name: str) -> dict[str, Any]:
    """``gguf.json`` of model ``name``: ``metadata``, and ``tensors`` with shape and digest of each."""
    found: dict[str, Any] = json.loads((FAMILIES / name / "gguf.json").read_text("utf-8"))
    return found


def write_gguf(name: str, path: Path, kind: gguf.GGMLQuantizationType = F32, *, as_floats: bool = False) -> Path:
    """Writes model ``name`` to ``path``, matrices in the type ``kind``, or as the floats that it makes of them."""
    golden = listed(name)
    arch = golden["metadata"]["general.architecture"]
    writer = gguf.GGUFWriter(path, arch)
    for key, value in golden["metadata"].items():
        if key != "general.architecture":
            _add(writer, key, value)
    if f"{arch}.vocab_size" not in golden["metadata"]:  # else it is counted in the vocabulary, which is not there
        writer.add_vocab_size(load(name).cfg.vocab)
    written = set()
    for key, values in gguf_tensors(name):
        if key not in golden["tensors"]:
            continue  # vision, and layers that the converter leaves out
        shape, digest = golden["tensors"][key]
        assert list(values.shape) == shape, (name, key)
        if key != ROPE_FACTORS:  # the last bits of a power are the library's
            assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == digest, (name, key)
        written.add(key)
        if kind is F32 or values.ndim == 1:
            writer.add_tensor(key, values)
        elif as_floats:
            writer.add_tensor(key, gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind))
        else:
            writer.add_tensor(key, gguf.quants.quantize(values, kind), raw_dtype=kind)
    assert written == set(golden["tensors"]), (name, set(golden["tensors"]) - written)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    types = gguf.GGUFValueType
    match value:
        case bool():
            writer.add_key_value(key, value, types.BOOL)
        case int():
            writer.add_key_value(key, value, types.UINT32)
        case float():
            writer.add_key_value(key, value, types.FLOAT32)
        case str():
            writer.add_key_value(key, value, types.STRING)
        case list():
            writer.add_array(key, value)
        case _:
            raise TypeError(f"{key} is {value!r}")


def gguf_tensors(name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Names and float32 values of all tensors that have a name in GGUF."""
    metadata, cfg = listed(name)["metadata"], load(name).cfg
    arch = metadata["general.architecture"]
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == _LIKE.get(arch, arch))
    names = gguf.get_tensor_name_map(number, cfg.layers + cfg.mtp_layers)
    tensors = float_tensors(name)
    for key, values in _heads_apart(_experts_together(tensors), cfg):
        key = key.replace("e_score_correction_bias", "e_score_correction.bias")
        new = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if new is None:
            continue
        if arch == "gemma3" and new.endswith("norm.weight"):
            values = values + np.float32(1)
        heads = cfg.heads if ".q_proj." in key else cfg.kv_heads if ".k_proj." in key else 0
        if arch in _PERMUTED and heads:
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        yield new, np.ascontiguousarray(values)
    if arch == "llama" and cfg.rope.scaling is not None:
        plain = cfg.rope.theta ** (-np.arange(0, cfg.rope.dims, 2) / cfg.rope.dims)
        yield ROPE_FACTORS, (plain / inverse_frequencies(cfg.rope)).astype(np.float32)


def _experts_together(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts of one matrix stacked: ``experts.3.up_proj.weight`` is the fourth of ``experts.up_proj.weight``."""
    found: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for key, values in tensors.items():
        if match := _EXPERT.fullmatch(key):
            stacks.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = values
        else:
            found[key] = values
    return found | {key: np.stack([stack[i] for i in range(len(stack))]) for key, stack in stacks.items()}


def _heads_apart(tensors: dict[str, np.ndarray], cfg: Any) -> Iterator[tuple[str, np.ndarray]]:
    """``kv_b_proj`` is cut into what makes keys, turned, and what makes values."""
    for key, values in tensors.items():
        if "kv_b_proj" not in key:
            yield key, values
            continue
        heads = values.reshape(cfg.heads, -1, values.shape[1])
        keys, rest = np.split(heads, [cfg.latent.nope], axis=1)
        yield key.replace("kv_b_proj", "k_b_proj"), keys.swapaxes(1, 2)
        yield key.replace("kv_b_proj", "v_b_proj"), rest
