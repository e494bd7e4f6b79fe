"""A worker on another host, as if it were a process of this one: ``python -m trimaran.pools.relay DESCRIPTOR [NAME]``.

Keeps the contract of workers (``host/process.py``): connects to ``trimaran worker``, proves that it has the key, and
passes on what either side says. It ends when the connection does; whoever started it starts another, which connects
again. The configuration: ``address`` (HOST:PORT), ``key`` and ``name``.
"""

import contextlib
import os
import socket
import sys
import threading
import time

import msgspec

from trimaran.base.errors import ConfigError, TrimaranError
from trimaran.base.failures import failure_of
from trimaran.base.frames import frame
from trimaran.base.messages import FromEngineBatch
from trimaran.pools.key import PoolKey
from trimaran.pools.line import open_line
from trimaran.pools.link import MEET_SECONDS
from trimaran.pools.pump import pump
from trimaran.pools.records import Records
from trimaran.pools.stream import Stream
from trimaran.pools.tcp import TcpTransport


class RelayConfig(msgspec.Struct, forbid_unknown_fields=True):
    """Where the worker is."""

    address: str
    key: str
    name: str


def connect(config: RelayConfig) -> Records:
    """A connection to the worker; raises ``TransferError``, ``PeerError`` or ``ConfigError`` when there is none."""
    key = PoolKey(config.key)
    transport = TcpTransport(key)
    until = time.monotonic() + MEET_SECONDS
    connected = transport.open_connection(config.address, MEET_SECONDS)
    stream = Stream(connected)
    try:
        transport.prepare(connected)
        return open_line(stream, key, config.name, dialled=True, until=until)
    except BaseException:
        stream.close()
        raise


def main() -> int:
    local = socket.socket(fileno=int(sys.argv[1]))
    local.setblocking(True)
    try:
        records = connect(_read_config())
    except TrimaranError as error:
        with contextlib.suppress(OSError):
            local.sendall(frame(msgspec.msgpack.encode(FromEngineBatch([failure_of("", error)]))))
        return 1
    threading.Thread(target=_watch_host, daemon=True).start()
    why = pump(local, records)
    if why is not None:
        print(f"the connection to the worker ended: {why}", file=sys.stderr)
    return 0 if why is None else 1


def _read_config() -> RelayConfig:
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, 65536)
        if not data:
            raise ConfigError("the configuration on standard input ended early")
        line += data
    try:
        return msgspec.json.decode(line, type=RelayConfig)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"the address of a worker: {error}") from None


def _watch_host() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
