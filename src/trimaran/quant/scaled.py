"""``weight`` in 8 bits beside its scales, which are called ``weight_scale_inv`` or ``weight_scale``.

Sources: DeepSeek-V3's ``weight_dequant`` (e4m3 in blocks; despite "inv" the scale is multiplied), compressed-tensors'
``float-quantized`` and ``int-quantized``, Mistral's and ModelOpt's files with one scale a matrix.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.tensors import StorageFormat
from trimaran.quant.fp8 import Fp8
from trimaran.quant.integers import Integers, SignedBytes
from trimaran.quant.method import Method
from trimaran.quant.parts import Parts

FLOAT8 = (StorageFormat.F8_E4M3, StorageFormat.F8_E5M2)
SCALES = ("weight_scale_inv", "weight_scale")
LEAVES = frozenset({"weight", "weight_zero_point", *SCALES})


def read_fp8(parts: Parts, method: Method) -> Fp8:
    """The matrix; raises ``CheckpointError`` where its tensors contradict.

    The scales' shape says what they are for: the whole matrix, a row, a block, or a run of inputs of a row.
    """
    floats = parts.matrix("weight", FLOAT8)
    rows, cols = floats.shape
    leaf = _scale_leaf(parts)
    scale = _decoded(parts, leaf)
    high, wide = method.block
    if scale.size == 1:
        return Fp8(parts.name, floats.shape, floats, scale.reshape(1, 1), (rows, cols))
    if scale.shape in ((rows,), (rows, 1)):
        return Fp8(parts.name, floats.shape, floats, scale.reshape(rows, 1), (1, cols))
    if scale.shape == (-(-rows // high), -(-cols // wide)):
        return Fp8(parts.name, floats.shape, floats, scale, (high, wide))
    if scale.ndim == 2 and scale.shape[0] == rows and scale.shape[1] and cols % scale.shape[1] == 0:
        return Fp8(parts.name, floats.shape, floats, scale, (1, cols // scale.shape[1]))
    raise parts.wrong(leaf, f"has shape {list(scale.shape)}, which fits no blocks of {high}x{wide} of {[rows, cols]}")


def read_int8(parts: Parts) -> Integers:
    """The matrix; raises ``CheckpointError`` where its tensors contradict."""
    integers = parts.matrix("weight", (StorageFormat.I8,))
    rows, cols = integers.shape
    leaf = _scale_leaf(parts)
    scale = parts.group_scales(leaf, rows, cols)
    if cols % scale.shape[1]:
        raise parts.wrong(leaf, f"has {scale.shape[1]} scales a row, which do not divide {cols} inputs")
    zeros = None
    if "weight_zero_point" in parts:
        signed = parts.array("weight_zero_point", (StorageFormat.I8,))
        if signed.size not in (1, scale.size):
            raise parts.wrong("weight_zero_point", f"has shape {list(signed.shape)}, the scales {list(scale.shape)}")
        zeros = np.broadcast_to(signed.reshape(-1, scale.shape[1]).view(np.uint8) ^ np.uint8(128), scale.shape)
    return Integers(parts.name, (rows, cols), 8, SignedBytes(integers), scale, zeros, rounded=False)


def _scale_leaf(parts: Parts) -> str:
    present = [leaf for leaf in SCALES if leaf in parts]
    if len(present) == 1:
        return present[0]
    if present:
        raise parts.wrong(present[0], f"and {parts.module}.{present[1]} are both there; which one counts?")
    raise CheckpointError(
        f"the model has neither {' nor '.join(f'{parts.module}.{leaf}' for leaf in SCALES)}: {parts.name} is stored as"
        f" {parts.tensors['weight'].fmt}, which means nothing without scales"
    )


def _decoded(parts: Parts, leaf: str) -> npt.NDArray[Any]:
    """Scales as float32. Bytes are powers of two (e8m0), whether the file calls them so or U8."""
    powers = (StorageFormat.F8_E8M0, StorageFormat.U8)
    if parts.tensors[leaf].fmt in powers:
        exponents = parts.array(leaf, powers).view(np.uint8)
        if (exponents == 255).any():
            raise parts.wrong(leaf, "holds scales that are no numbers")
        return np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    return parts.scales(leaf).astype(np.float32)
