"""How the bytes of page frames go over a link: in its records, or by way of memory that the receiver owns.

Either way there are ``slots`` for frames under way, of ``frame_bytes`` each: a frame takes one when it is handed to the
link and gives it back when it has been written (in records) or when the receiver has freed it (in the receiver's
memory). So what a link holds is bounded on both sides.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

UInt8 = npt.NDArray[np.uint8]

SLOTS = 4  # frames under way: one each being exported, sent, received and imported


class Carriage(Protocol):
    """One end of memory with ``SLOTS`` slots of ``frame_bytes``, which the receiver owns."""

    frame_bytes: int

    def write(self, slot: int, data: UInt8) -> None:
        """The sender's: returns when ``data`` is in the receiver's memory. On the link's writing thread. Raises
        ``TransferError`` when it cannot be done, or takes too long."""
        ...

    def view(self, slot: int, size: int) -> UInt8:
        """The receiver's: what was written to a slot, where it lies."""
        ...

    def close(self) -> None:
        """Views that were given stay valid. Idempotent."""
        ...
