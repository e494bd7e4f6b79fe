"""Links between processes of one host: pages go through memory that the receiver owns, all else over a Unix socket.

The memory is a file without a name (``memfd``), given to the sender over the socket, and the socket's address is one
without a file: both end with the processes that hold them, however those end. The file is sealed, so that neither side
can make it shorter under the other's feet. Only processes of the same user may connect.
"""

import fcntl
import mmap
import os
import secrets
import socket
import struct
import sys

import numpy as np

from trimaran.base.errors import ConfigError, PeerError, TransferError
from trimaran.pools.carriage import SLOTS, Slots
from trimaran.pools.key import PoolKey
from trimaran.pools.meeting import Carrier, Meeting, SocketTransport

_BACKLOG = 64
_PREFIX = "@trimaran-"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if sys.platform == "linux" else 0


class SharedMemory(Slots):
    """See ``SlotMemory`` and ``SlotWriter``: both ends have the same slots. Not one-sided: what is written too late
    goes to memory that this link alone has had."""

    def __init__(self, descriptor: int, frame_bytes: int) -> None:
        """The mapping ends with its last view."""
        super().__init__(np.frombuffer(mmap.mmap(descriptor, SLOTS * frame_bytes), np.uint8), frame_bytes)

    def write(self, slot: int, size: int) -> None:
        """It is there already."""


class SharedMemoryTransport(SocketTransport):
    """Linux only: ``ConfigError`` from ``listen`` elsewhere."""

    name = "shm"

    def __init__(self, key: PoolKey) -> None:
        super().__init__(key)
        self.carrier = Carrier(_give, _get)

    def open_listening(self, address: str | None) -> tuple[socket.socket, str]:
        if sys.platform != "linux":
            raise ConfigError("pages can go through shared memory on Linux only; use the tcp transport")
        address = address or _PREFIX + secrets.token_hex(16)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(_socket_name(address))
            listening.listen(_BACKLOG)
        except (OSError, ConfigError) as error:
            listening.close()
            raise ConfigError(f"cannot listen for pages on {address}: {error}") from None
        return listening, address

    def open_connection(self, address: str, seconds: float) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.settimeout(seconds)
        try:
            connected.connect(_socket_name(address))
        except (OSError, ConfigError) as error:
            connected.close()
            raise TransferError(f"cannot connect to {address}: {error}") from None
        return connected

    def prepare(self, connected: socket.socket) -> None:
        """Names without a file have no permissions, so the other side's user is asked for."""
        if sys.platform == "linux":
            found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _, user, _ = struct.unpack("3i", found)
            if user != os.geteuid():
                raise PeerError(f"shared memory is for processes of one user: theirs is {user}, ours is {os.geteuid()}")


def _give(meeting: Meeting) -> SharedMemory:
    stream, size = meeting.records.stream, SLOTS * meeting.frame_bytes
    descriptor = _sealed_memory(size)
    try:
        stream.when_writable(lambda: socket.send_fds(stream.socket, [b"\0"], [descriptor]), meeting.until)
        return SharedMemory(descriptor, meeting.frame_bytes)
    finally:
        os.close(descriptor)


def _get(meeting: Meeting) -> SharedMemory:
    stream, size = meeting.records.stream, SLOTS * meeting.frame_bytes
    _, descriptors, _, _ = stream.when_readable(
        lambda: socket.recv_fds(stream.socket, 1, 1, socket.MSG_CMSG_CLOEXEC), meeting.until
    )
    try:
        if len(descriptors) != 1 or os.fstat(descriptors[0]).st_size != size:
            raise TransferError(f"{meeting.peer.name} has not given {size} bytes of memory")
        if _seals(descriptors[0]) & _SEALS != _SEALS:
            raise TransferError(f"{meeting.peer.name} has given memory that it could take away again")
        return SharedMemory(descriptors[0], meeting.frame_bytes)
    finally:
        for each in descriptors:
            os.close(each)


def _sealed_memory(size: int) -> int:
    """A descriptor of zeros whose size is for ever."""
    descriptor = os.memfd_create("trimaran-pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(descriptor)
        raise TransferError(f"cannot get {size} bytes of shared memory: {error.strerror}") from None
    return descriptor


def _seals(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # no memory of this kind
        return 0


def _socket_name(address: str) -> str:
    if not address.startswith("@") or "\0" in address:
        raise ConfigError(f"{address!r} is no address for shared memory: it begins with @")
    return "\0" + address[1:]
