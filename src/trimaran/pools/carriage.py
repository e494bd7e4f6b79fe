"""How the bytes of page frames go over a link: in its records, or by way of memory that the receiver owns.

Either way there are ``SLOTS`` for frames under way: a frame takes one when it is handed to the link and gives it back
when it has been written (in records) or when the receiver has freed it (in the receiver's memory). So what a link holds
is bounded on both sides.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

UInt8 = npt.NDArray[np.uint8]

SLOTS = 8  # frames under way: two each being exported, sent, received and imported; short prompts are a frame each


class SlotMemory(Protocol):
    """The receiver's end: ``SLOTS`` slots, each as large as the largest frame."""

    one_sided: bool  # whether writes may go on after the link is over, until the sender has let go of it

    def view(self, slot: int, size: int) -> UInt8:
        """The first ``size`` bytes of a slot, where they lie."""
        ...

    def close(self) -> None:
        """When no thread of the link uses it any more, and no write of the sender's can be under way. Views that were
        given stay valid. Idempotent."""
        ...


class SlotWriter(Protocol):
    """The sender's end."""

    def write(self, slot: int, data: UInt8) -> None:
        """Returns when ``data`` is in the receiver's memory. On the link's writing thread. Raises ``TransferError``
        when it cannot be done, or takes too long."""
        ...

    def close(self) -> None:
        """When no thread of the link uses it any more. Idempotent."""
        ...
