"""Weights that are never stored: every tensor's values follow from its name, the same on every machine and for ever.

NumPy guarantees the raw output of its bit generators, but not what its distributions make of it, so what happens to
the raw bits is written out here. Used by tests and by scripts/goldens_families.py, which has no Trimaran installed.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of a checkpoint: ``dtype`` as safetensors spells it, and what its values look like.

    Values have the given ``mean`` and standard deviation ``spread`` and are rounded to the type; ``I32`` holds eight
    nibbles a number. ``like`` names the tensor that this one is a copy of. ``given`` are the values themselves.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    mean: float = 0.0
    spread: float = 0.0
    like: str = ""
    given: tuple[int, ...] = ()


def tensor(model: str, spec: TensorSpec) -> Array:
    """The tensor's values as they lie in the file: BF16 as uint16, F8_E4M3 as uint8, F32 as float32, I32 as int32."""
    if spec.given:
        return np.array(spec.given, np.int32)
    count = int(np.prod(spec.shape, dtype=np.int64))
    numbers = normal(f"{model}/{spec.like or spec.name}", count * (8 if spec.dtype == "I32" else 1))
    values: Float32 = (spec.mean + spec.spread * numbers).astype(np.float32)
    if spec.name.endswith(("_scale", "_scale_inv")):  # a weight is then a BF16 number, whatever it is computed in
        mantissa, exponent = np.frexp(values)
        values = np.ldexp(np.rint(mantissa * 16) / 16, exponent).astype(np.float32)
    match spec.dtype:
        case "F32":
            return values.reshape(spec.shape)
        case "BF16":
            return to_bf16(values).reshape(spec.shape)
        case "F8_E4M3":
            return to_e4m3(values).reshape(spec.shape)
        case "I32":
            return pack_nibbles(values).reshape(spec.shape)
    raise ValueError(f"{spec.name} has dtype {spec.dtype}")


def normal(seed: str, count: int) -> npt.NDArray[np.float64]:
    """``count`` numbers of mean 0 and deviation 1, at most 3.5 from 0: sums of the four quarters of a random word."""
    key = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16], "little")
    quarters = np.random.Philox(key=key).random_raw(count).view(np.uint16).reshape(count, 4)
    sums: npt.NDArray[np.int64] = quarters.sum(axis=1, dtype=np.int64)
    return (sums - 131070).astype(np.float64) * (1 / 37837.0)


def to_bf16(values: Float32) -> npt.NDArray[np.uint16]:
    """Upper halves of the float32 bits, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_e4m3(values: Float32) -> npt.NDArray[np.uint8]:
    """Nearest numbers of 8 bits: sign, 4 bits of exponent (bias 7), 3 of mantissa; 448 is the largest."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    grid = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    nearest = np.searchsorted((grid[1:] + grid[:-1]) / 2, np.abs(values))
    return (nearest | np.where(values < 0, 128, 0)).astype(np.uint8)


def pack_nibbles(values: Float32) -> npt.NDArray[np.int32]:
    """Eight values, rounded and clipped to 0..15, in each number: the first in its lowest bits."""
    nibbles = np.clip(np.rint(values), 0, 15).astype(np.uint32).reshape(-1, 8)
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(nibbles << (4 * np.arange(8, dtype=np.uint32)), axis=1)
    return words.view(np.int32)
