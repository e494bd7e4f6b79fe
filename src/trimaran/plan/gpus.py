"""GPUs by name: the memory that their driver reports."""

from dataclasses import dataclass

from trimaran.base.env import nearest
from trimaran.base.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """``memory``: bytes in all, as ``nvidia-smi`` or ``rocm-smi`` shows them; vendors' round numbers are larger."""

    name: str
    memory: int


GPUS = {
    name: Gpu(name, int(gib * GIB))
    for name, gib in {
        "a100-40": 39.4,
        "a100-80": 79.3,
        "b200": 178.4,
        "h100": 79.2,
        "h200": 139.8,
        "l40s": 44.5,
        "mi300x": 191.5,
        "rtx4090": 23.6,
    }.items()
}


def find_gpu(name: str) -> Gpu:
    """The GPU called ``name``; raises ``ConfigError`` that says which there are."""
    key = name.lower()
    if key not in GPUS:
        raise ConfigError(
            f"no GPU {name!r} is known, only {', '.join(GPUS)}, or any by --gpu-memory{nearest(key, GPUS)}"
        )
    return GPUS[key]
