"""Records on a byte stream: a head and bytes of data, each pair under a keyed hash and in its place in the order.

    length of head, length of data (4 bytes each, little-endian)
    BLAKE2b of 16 bytes, keyed for this direction of this connection, of the record's number, the lengths, head and data
    head
    data

A record that was altered, left out, repeated or made by somebody else breaks the connection.
"""

import hashlib
import hmac
import time

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import TransferError
from trimaran.pools.link import MAX_MESSAGE_BYTES, STALL_SECONDS
from trimaran.pools.stream import Stream

UInt8 = npt.NDArray[np.uint8]

_LENGTHS = 8
_MAC = 16
_NO_DATA = np.zeros(0, np.uint8)


class Records:
    """Both directions of a connection. One thread may read while another writes."""

    def __init__(self, stream: Stream, write_key: bytes, read_key: bytes) -> None:
        self.stream = stream
        self._write_key, self._read_key = write_key, read_key
        self._written = self._read = 0

    def write(self, head: bytes, data: UInt8 = _NO_DATA, seconds: float = STALL_SECONDS) -> None:
        """Raises ``TransferError`` when the connection breaks or the other side does not take it in ``seconds``."""
        assert len(head) <= MAX_MESSAGE_BYTES
        body = data.data.cast("B")
        lengths = len(head).to_bytes(4, "little") + len(body).to_bytes(4, "little")
        mac = _mac(self._write_key, self._written, lengths, head, body)
        self._written += 1
        self.stream.write([lengths + mac + head, body], time.monotonic() + seconds)

    def read(self, max_data: int, seconds: float | None = None) -> tuple[bytes, UInt8]:
        """The next record: its head, and its data as an array of its own.

        ``seconds``: how long it may take to begin; None: any time. Raises ``TransferError`` when the connection breaks,
        the rest does not follow within ``STALL_SECONDS``, or something is wrong with it.
        """
        start = memoryview(bytearray(_LENGTHS + _MAC))
        self.stream.read(start[:1], None if seconds is None else time.monotonic() + seconds)
        until = time.monotonic() + STALL_SECONDS
        self.stream.read(start[1:], until)
        lengths, mac = bytes(start[:_LENGTHS]), bytes(start[_LENGTHS:])
        head_size, size = int.from_bytes(lengths[:4], "little"), int.from_bytes(lengths[4:], "little")
        if head_size > MAX_MESSAGE_BYTES or size > max_data:
            raise TransferError(f"a record of {head_size} and {size} bytes; at most {MAX_MESSAGE_BYTES} and {max_data}")
        head = bytearray(head_size)
        data = np.empty(size, np.uint8) if size else _NO_DATA
        self.stream.read(memoryview(head), until)
        self.stream.read(data.data.cast("B"), until)
        if not hmac.compare_digest(mac, _mac(self._read_key, self._read, lengths, head, data.data.cast("B"))):
            raise TransferError("a record was altered on its way")
        self._read += 1
        return bytes(head), data


def _mac(key: bytes, number: int, lengths: bytes, head: bytes | bytearray, data: memoryview) -> bytes:
    mac = hashlib.blake2b(number.to_bytes(8, "little") + lengths + head, key=key, digest_size=_MAC)
    mac.update(data)
    return mac.digest()
