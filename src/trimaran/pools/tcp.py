"""Links over TCP, for engines on different hosts: authenticated always, encrypted where both have ``cryptography``."""

import contextlib
import socket

from trimaran.base.errors import ConfigError, TransferError
from trimaran.pools.link import STALL_SECONDS
from trimaran.pools.meeting import SocketTransport

LOOPBACK = "127.0.0.1:0"
_BACKLOG = 64
_PROBES = 3


class TcpTransport(SocketTransport):
    """Pages go in the records themselves."""

    name = "tcp"
    encrypts = True

    def open_listening(self, address: str | None) -> tuple[socket.socket, str]:
        host, port = split_address(address or LOOPBACK)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(f"cannot listen for pages on {address}: {error.strerror or error}") from None
        return listening, join_address(host, listening.getsockname()[1])

    def open_connection(self, address: str, seconds: float) -> socket.socket:
        try:
            connected = socket.create_connection(split_address(address), seconds)
        except (OSError, ConfigError) as error:
            raise TransferError(f"cannot connect to {address}: {error}") from None
        return connected

    def prepare(self, connected: socket.socket) -> None:
        """Small messages go at once, and a host that vanishes is noticed."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with contextlib.suppress(AttributeError):  # where the system has no such options its own times hold
            probe = int(STALL_SECONDS) // (_PROBES + 1)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_SECONDS * 1000))


def split_address(address: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[HOST]:PORT``; raises ``ConfigError``."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address for pages: expected HOST:PORT, with a port of 0 to 65535")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
