"""Records on a byte stream: a head and bytes of data, under a seal (``seals.py``) and in their place in the order.

    length of head, length of data (4 bytes each, little-endian)
    tag of 16 bytes, of the record's number, the lengths, head and data
    head
    data

A record that was altered, left out, repeated or made by somebody else breaks the connection.
"""

import time

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import TransferError
from trimaran.pools.link import MAX_MESSAGE_BYTES, STALL_SECONDS
from trimaran.pools.seals import TAG, AesSeal, HashSeal, Seal
from trimaran.pools.stream import Stream

UInt8 = npt.NDArray[np.uint8]

_LENGTHS = 8
_NO_DATA = np.zeros(0, np.uint8)


class Records:
    """Both directions of a connection. One thread may read while another writes."""

    def __init__(self, stream: Stream, write_key: bytes, read_key: bytes) -> None:
        """The keys are of 32 bytes; nobody else has them."""
        self.stream = stream
        self._keys = write_key, read_key
        self._seals: tuple[Seal, Seal] = HashSeal(write_key), HashSeal(read_key)
        self._written = self._read = 0

    def encrypt(self) -> None:
        """From the next record on, in both directions; the other side does it at the same place."""
        self._seals = AesSeal(self._keys[0]), AesSeal(self._keys[1])

    def write(self, head: bytes, data: UInt8 = _NO_DATA, seconds: float = STALL_SECONDS) -> None:
        """Raises ``TransferError`` when the connection breaks or the other side does not take it in ``seconds``."""
        assert len(head) <= MAX_MESSAGE_BYTES
        body = data.data.cast("B")
        lengths = len(head).to_bytes(4, "little") + len(body).to_bytes(4, "little")
        tag, sealed, wire = self._seals[0].seal(self._written, lengths, head, body)
        self._written += 1
        self.stream.write([lengths + tag + sealed, wire], time.monotonic() + seconds)

    def read(self, max_data: int, seconds: float | None = None, into: UInt8 | None = None) -> tuple[bytes, UInt8]:
        """The next record: its head, and its data at the beginning of ``into``, uint8 ``[max_data]``, or in an array of
        its own.

        ``seconds``: how long it may take to begin; None: any time. Raises ``TransferError`` when the connection breaks,
        the rest does not follow within ``STALL_SECONDS``, or something is wrong with it.
        """
        start = memoryview(bytearray(_LENGTHS + TAG))
        self.stream.read(start[:1], None if seconds is None else time.monotonic() + seconds)
        until = time.monotonic() + STALL_SECONDS
        self.stream.read(start[1:], until)
        lengths, tag = bytes(start[:_LENGTHS]), bytes(start[_LENGTHS:])
        head_size, size = int.from_bytes(lengths[:4], "little"), int.from_bytes(lengths[4:], "little")
        if head_size > MAX_MESSAGE_BYTES or size > max_data:
            raise TransferError(f"a record of {head_size} and {size} bytes; at most {MAX_MESSAGE_BYTES} and {max_data}")
        head = bytearray(head_size)
        data = np.empty(size, np.uint8) if into is None else into[:size]
        self.stream.read(memoryview(head), until)
        self.stream.read(self._seals[1].wire(data), until)
        opened = self._seals[1].open(self._read, lengths, tag, bytes(head), data)
        self._read += 1
        return opened, data
