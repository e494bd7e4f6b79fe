"""Storage formats as NumPy knows them."""

from typing import Any

import ml_dtypes
import numpy as np

from trimaran.checkpoint.tensors import StorageFormat

DTYPES: dict[StorageFormat, np.dtype[Any]] = {
    StorageFormat.F64: np.dtype("<f8"),
    StorageFormat.F32: np.dtype("<f4"),
    StorageFormat.F16: np.dtype("<f2"),
    StorageFormat.BF16: np.dtype(ml_dtypes.bfloat16),
    StorageFormat.F8_E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
    StorageFormat.F8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
    StorageFormat.F8_E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    StorageFormat.I64: np.dtype("<i8"),
    StorageFormat.I32: np.dtype("<i4"),
    StorageFormat.I16: np.dtype("<i2"),
    StorageFormat.I8: np.dtype("i1"),
    StorageFormat.U64: np.dtype("<u8"),
    StorageFormat.U32: np.dtype("<u4"),
    StorageFormat.U16: np.dtype("<u2"),
    StorageFormat.U8: np.dtype("u1"),
    StorageFormat.BOOL: np.dtype("?"),
}
