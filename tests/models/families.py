"""The tiny checkpoints of every family: their files, and the logits that transformers computes from them.

``tests/data/families/NAME/`` holds ``config.json`` as the vendor's hub spells it, ``config_saved.json`` as transformers
saves it (without what says how weights are quantised), ``tensors.json`` (names, types and shapes as on the hub; see
``random_values.py`` for the values), ``gguf.json`` (see ``gguf_families.py``) and ``golden.npz``:

================  ==============================  ==================================================================
``tokens``        int32 ``[N]``                   the prompt
``logits``        float32 ``[N, vocab]``          what follows each token
``selected``      int32 ``[indexers, N, top-k]``  positions that sparse attention reads, ascending, then -1
``next_logits``   float32 ``[N - 1, vocab]``      of the multi-token prediction layer: what follows token i + 1, from
                                                  token i's state
================  ==============================  ==================================================================

The last two are there where the model has such a part. scripts/goldens_families.py writes all of it.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import ml_dtypes
import numpy as np

from .random_values import Array, TensorSpec, tensor

FAMILIES = Path(__file__).resolve().parent.parent / "data" / "families"
NAMES = tuple(sorted(folder.name for folder in FAMILIES.iterdir()))


def tensor_specs(name: str) -> list[TensorSpec]:
    """What ``tensors.json`` of model ``name`` lists."""
    specs = []
    for key, (dtype, shape, *rest) in json.loads((FAMILIES / name / "tensors.json").read_text("utf-8")).items():
        if isinstance(rest[0], list):
            specs.append(TensorSpec(key, dtype, tuple(shape), given=tuple(rest[0])))
        else:
            specs.append(TensorSpec(key, dtype, tuple(shape), *rest))
    return specs


def write_checkpoint(name: str, folder: Path) -> Path:
    """Writes model ``name`` into ``folder``, which may exist: ``config.json`` and ``model.safetensors``."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes((FAMILIES / name / "config.json").read_bytes())
    write_safetensors(folder / "model.safetensors", ((spec, tensor(name, spec)) for spec in tensor_specs(name)))
    return folder


def write_safetensors(path: Path, tensors: Iterable[tuple[TensorSpec, Array]]) -> None:
    """Writes a safetensors file."""
    header, data = {}, bytearray()
    for spec, values in tensors:
        begin = len(data)
        data += values.tobytes()
        header[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [begin, len(data)]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)


def golden(name: str) -> dict[str, np.ndarray]:
    """The arrays of model ``name``'s ``golden.npz``."""
    with np.load(FAMILIES / name / "golden.npz") as file:
        return dict(file)


def float_tensors(name: str) -> dict[str, np.ndarray]:
    """The tensors of model ``name`` as float32 under the names of its language model, quantised ones multiplied out."""
    specs = {spec.name: spec for spec in tensor_specs(name)}
    stored = {key: tensor(name, spec) for key, spec in specs.items()}
    found: dict[str, np.ndarray] = {}
    for key, spec in specs.items():
        values = stored[key]
        if spec.dtype == "F8_E4M3":
            scale = stored[key + "_scale_inv"].repeat(128, 0).repeat(128, 1)[: spec.shape[0], : spec.shape[1]]
            values = values.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
        elif key.endswith("_packed"):
            key = key.removesuffix("_packed")
            nibbles = values.view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
            scale = stored[key + "_scale"].view(ml_dtypes.bfloat16).astype(np.float32).repeat(32, 1)
            values = (nibbles.reshape(scale.shape).astype(np.float32) - 8) * scale
        elif key.endswith(("_scale", "_scale_inv", "_shape")):
            continue
        elif spec.dtype == "BF16":
            values = values.view(ml_dtypes.bfloat16).astype(np.float32)
        found[key.removeprefix("language_model.")] = values
    return found
