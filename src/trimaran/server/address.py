"""The socket to listen on and the signals that end it: taken before anything slow begins, so light to import."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Iterator

from trimaran.base.errors import ConfigError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """Takes the address before anything slow begins; nothing can connect until it is served. Raises ``ConfigError``."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from error
    return sock


def is_loopback(sock: socket.socket) -> bool:
    """True when only this machine can reach ``sock``."""
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def url(sock: socket.socket, scheme: str = "http") -> str:
    """Where clients find ``sock``."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextlib.contextmanager
def stop_signals() -> Iterator[asyncio.Queue[signal.Signals]]:
    """A queue that gets every SIGINT and SIGTERM; main thread only."""
    loop = asyncio.get_running_loop()
    stops: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in SIGNALS:
        loop.add_signal_handler(number, stops.put_nowait, number)
    try:
        yield stops
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
