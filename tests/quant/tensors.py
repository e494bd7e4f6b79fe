"""Checkpoint tensors made in memory."""

import numpy as np

from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat


def from_bytes(fmt: StorageFormat, rows: int, cols: int, data: bytes, name: str = "w") -> CheckpointTensor:
    """A matrix whose rows lie in ``data`` one after the other; not aligned, as in a file."""
    shifted = np.frombuffer(b"\0" + data, np.uint8)[1:]
    return CheckpointTensor(name, (rows, cols), fmt, shifted.reshape(rows, fmt.row_bytes(cols)))


def random_blocks(fmt: StorageFormat, rows: int, cols: int, seed: int = 0) -> CheckpointTensor:
    """Random bits in every field, but finite half-precision scales of either sign."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * cols // fmt.block_size, fmt.block_bytes), np.uint8)
    for offset in _HALVES[fmt]:
        halves = rng.uniform(-2, 2, len(blocks)).astype("<f2")
        blocks[:, offset : offset + 2] = halves[:, None].view(np.uint8)
    if fmt is StorageFormat.MXFP4:
        blocks[:, 0] = rng.integers(110, 140, len(blocks))  # powers of two
    return from_bytes(fmt, rows, cols, blocks.tobytes())


_HALVES: dict[StorageFormat, tuple[int, ...]] = {  # where a block keeps numbers in half precision
    StorageFormat.Q8_0: (0,),
    StorageFormat.Q4_0: (0,),
    StorageFormat.Q4_1: (0, 2),
    StorageFormat.Q5_0: (0,),
    StorageFormat.Q5_1: (0, 2),
    StorageFormat.Q2_K: (80, 82),
    StorageFormat.Q3_K: (108,),
    StorageFormat.Q4_K: (0, 2),
    StorageFormat.Q5_K: (0, 2),
    StorageFormat.Q6_K: (208,),
    StorageFormat.IQ4_NL: (0,),
    StorageFormat.IQ4_XS: (0,),
    StorageFormat.MXFP4: (),
}
BLOCK_FORMATS = list(_HALVES)
