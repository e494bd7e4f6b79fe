"""Kinds of links by name."""

from collections.abc import Callable

from trimaran.base.errors import ConfigError
from trimaran.pools.key import PoolKey
from trimaran.pools.link import Transport
from trimaran.pools.nixl import NixlTransport
from trimaran.pools.shared_memory import SharedMemoryTransport
from trimaran.pools.tcp import TcpTransport

TRANSPORTS: dict[str, Callable[[PoolKey], Transport]] = {
    "shm": SharedMemoryTransport,
    "nixl": NixlTransport,
    "tcp": TcpTransport,
}


def open_transport(name: str, key: PoolKey) -> Transport:
    """Raises ``ConfigError`` for an unknown name, or where what it needs is not installed."""
    if name not in TRANSPORTS:
        raise ConfigError(f"there is no transport {name!r} for pages; choose among {', '.join(TRANSPORTS)}")
    return TRANSPORTS[name](key)
