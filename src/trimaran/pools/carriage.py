"""How the bytes of page frames go over a link: in its records, or by way of memory that the receiver owns.

Either way there are ``SLOTS`` for frames under way, in memory that each side has for as long as the link lasts: the
sender's engine writes pages there and the receiver's reads them there, so that no frame costs memory of its own. A
frame takes a slot when it is handed to the link and gives it back when it has been written (in records) or when the
receiver has freed it (in the receiver's memory). So what a link holds is bounded on both sides.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

UInt8 = npt.NDArray[np.uint8]

SLOTS = 8  # frames under way: two each being exported, sent, received and imported; short prompts are a frame each


class SlotMemory(Protocol):
    """One side's ``SLOTS`` slots, each as large as the largest frame."""

    one_sided: bool  # whether the other side may go on writing here after the link is over, until it has let go of it

    def view(self, slot: int, size: int) -> UInt8:
        """The first ``size`` bytes of a slot, where they lie."""
        ...

    def close(self) -> None:
        """When no thread of the link uses it any more, and no write of the sender's can be under way. Views that were
        given stay valid. Idempotent."""
        ...


class SlotWriter(SlotMemory, Protocol):
    """The sender's slots, where pages do not go in records."""

    def write(self, slot: int, size: int) -> None:
        """Returns when the first ``size`` bytes of a slot are in the receiver's. On the link's writing thread. Raises
        ``TransferError`` when it cannot be done, or takes too long."""
        ...


class Slots:
    """Slots in ``memory`` uint8 ``[SLOTS * frame_bytes]``."""

    one_sided = False

    def __init__(self, memory: UInt8, frame_bytes: int) -> None:
        self._memory = memory
        self._frame_bytes = frame_bytes

    def view(self, slot: int, size: int) -> UInt8:
        start = slot * self._frame_bytes
        return self._memory[start : start + size]

    def close(self) -> None:
        """The memory goes with its last view."""
        self._memory = np.zeros(0, np.uint8)


def own_slots(frame_bytes: int) -> Slots:
    """Slots that nobody else can reach: what lies there goes in records. Those that are never used cost nothing."""
    return Slots(np.empty(SLOTS * frame_bytes, np.uint8), frame_bytes)
