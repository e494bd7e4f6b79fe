"""What a checkpoint holds: named tensors in the storage formats of GGUF and safetensors, as views of the file.

Who reads metadata alone, as the server does, has no need of NumPy: it is imported with the first tensor.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]


class StorageFormat(StrEnum):
    """How a file stores a tensor: whole rows of blocks of ``block_size`` values that take ``block_bytes`` bytes each.

    Source: ggml ``ggml-common.h`` (block structs) and the safetensors format description.
    """

    F64 = "F64"
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    F8_E4M3 = "F8_E4M3"
    F8_E5M2 = "F8_E5M2"
    F8_E8M0 = "F8_E8M0"  # a power of two: 2^(bits - 127)
    I64 = "I64"
    I32 = "I32"
    I16 = "I16"
    I8 = "I8"
    U64 = "U64"
    U32 = "U32"
    U16 = "U16"
    U8 = "U8"
    BOOL = "BOOL"
    Q8_0 = "Q8_0"  # f16 d, 32 x int8
    Q4_0 = "Q4_0"  # f16 d, 16 bytes of nibbles
    Q4_1 = "Q4_1"  # f16 d, f16 m, 16 bytes of nibbles
    Q5_0 = "Q5_0"  # f16 d, 32 high bits, 16 bytes of nibbles
    Q5_1 = "Q5_1"  # f16 d, f16 m, 32 high bits, 16 bytes of nibbles
    Q2_K = "Q2_K"  # 16 x 4-bit scale and minimum, 64 bytes of bit pairs, f16 d, f16 dmin
    Q3_K = "Q3_K"  # 32 bytes of third bits, 64 of bit pairs, 12 of 6-bit scales, f16 d
    Q4_K = "Q4_K"  # f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles
    Q5_K = "Q5_K"  # as Q4_K, with 32 bytes of high bits
    Q6_K = "Q6_K"  # 128 bytes of low nibbles, 64 of high bit pairs, 16 x int8 scales, f16 d
    IQ4_NL = "IQ4_NL"  # f16 d, 16 bytes of nibbles that number 16 values
    IQ4_XS = "IQ4_XS"  # f16 d, 6-bit scales in 2 + 4 bytes, 128 bytes of nibbles as IQ4_NL has them
    MXFP4 = "MXFP4"  # a power of two (e8m0), 16 bytes of 4-bit floats (e2m1)

    @property
    def block_size(self) -> int:
        """Values per block."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes per block."""
        return _BLOCKS[self][1]

    @property
    def dtype(self) -> "np.dtype[Any] | None":
        """The little-endian NumPy type of one value, or ``None`` for formats whose blocks hold several."""
        from trimaran.checkpoint.dtypes import DTYPES

        return DTYPES.get(self)

    def row_bytes(self, cols: int) -> int:
        """Bytes of a row of ``cols`` values; ``cols`` must be a multiple of ``block_size``."""
        assert cols % self.block_size == 0, (self, cols)
        return cols // self.block_size * self.block_bytes


_BLOCKS: dict[StorageFormat, tuple[int, int]] = {
    **dict.fromkeys((StorageFormat.F64, StorageFormat.I64, StorageFormat.U64), (1, 8)),
    **dict.fromkeys((StorageFormat.F32, StorageFormat.I32, StorageFormat.U32), (1, 4)),
    **dict.fromkeys((StorageFormat.F16, StorageFormat.BF16, StorageFormat.I16, StorageFormat.U16), (1, 2)),
    **dict.fromkeys((StorageFormat.F8_E4M3, StorageFormat.F8_E5M2, StorageFormat.F8_E8M0), (1, 1)),
    **dict.fromkeys((StorageFormat.I8, StorageFormat.U8, StorageFormat.BOOL), (1, 1)),
    StorageFormat.Q8_0: (32, 34),
    StorageFormat.Q4_0: (32, 18),
    StorageFormat.Q4_1: (32, 20),
    StorageFormat.Q5_0: (32, 22),
    StorageFormat.Q5_1: (32, 24),
    StorageFormat.Q2_K: (256, 84),
    StorageFormat.Q3_K: (256, 110),
    StorageFormat.Q4_K: (256, 144),
    StorageFormat.Q5_K: (256, 176),
    StorageFormat.Q6_K: (256, 210),
    StorageFormat.IQ4_NL: (32, 18),
    StorageFormat.IQ4_XS: (256, 136),
    StorageFormat.MXFP4: (32, 17),
}


@dataclass(frozen=True)
class TensorSpan:
    """Where a tensor lies: ``offset`` bytes into file number ``file`` of its checkpoint. ``shape`` is in torch order.

    A tensor is a sequence of rows; a scalar is one row of one value.
    """

    name: str
    shape: tuple[int, ...]
    fmt: StorageFormat
    file: int
    offset: int

    @property
    def rows(self) -> int:
        """Product of all dimensions but the last."""
        return prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.fmt.row_bytes(self.shape[-1] if self.shape else 1)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.rows * self.row_bytes

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True)
class CheckpointTensor:
    """A tensor of a checkpoint. ``shape`` is in torch order (rows first, a row's values last).

    ``data`` is a read-only view ``[rows, row_bytes]`` of the mapped file with ``rows`` = the product of all dimensions
    but the last. It need not be aligned to the size of a value, and it keeps the mapping alive while it is held.
    """

    name: str
    shape: tuple[int, ...]
    fmt: StorageFormat
    data: "Bytes"

    def array(self) -> "npt.NDArray[Any]":
        """A read-only view of ``shape`` in the format's NumPy type; it may be unaligned. Not for block formats."""
        dtype = self.fmt.dtype
        assert dtype is not None, self
        return self.data.view(dtype).reshape(self.shape)
