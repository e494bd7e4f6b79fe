"""What the group formats share: cutting rows into groups, and fp16 scales that must not overflow."""

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import GROUP
from trimaran.kernels.step import Float32


def as_groups(name: str, values: Float32) -> Float32:
    """``values`` ``[rows, cols]`` as ``[rows, cols / 32, 32]``."""
    rows, cols = values.shape
    if cols % GROUP:
        raise UnsupportedError(f"{name} has {cols} columns, no multiple of {GROUP}: hold it as bf16 or fp32")
    return values.reshape(rows, cols // GROUP, GROUP)


def as_half(name: str, numbers: Float32) -> npt.NDArray[np.float16]:
    """``numbers`` as fp16; refuses what fp16 cannot hold."""
    with np.errstate(over="ignore"):
        half = numbers.astype(np.float16)
    if not np.isfinite(half).all():
        raise UnsupportedError(
            f"{name} holds numbers too large for fp16 scales, or not finite: hold it as bf16 or fp32"
        )
    return half
