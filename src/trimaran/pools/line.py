"""The line between a server and a worker on another host: proved, sealed, and encrypted where both sides can."""

import ipaddress
import logging
import time

from trimaran.pools.handshake import MESSAGES, prove
from trimaran.pools.key import PoolKey
from trimaran.pools.records import Records
from trimaran.pools.seals import AES, ciphers
from trimaran.pools.stream import Stream

log = logging.getLogger(__name__)


def open_line(stream: Stream, key: PoolKey, name: str, *, dialled: bool, until: float) -> Records:
    """The records of a fresh connection, ``until`` then at the latest (``time.monotonic``); ``name`` is ours.

    Raises ``PeerError`` when the other side has another key, ``TransferError`` when the connection breaks or it takes
    too long.
    """
    records = prove(stream, key, name, MESSAGES, dialled=dialled, until=until)
    records.write(",".join(ciphers()).encode(), seconds=until - time.monotonic())
    theirs, _ = records.read(0, until - time.monotonic())
    if AES in ciphers() and AES in theirs.decode(errors="replace").split(","):
        records.encrypt()
    elif not ipaddress.ip_address(stream.socket.getpeername()[0].partition("%")[0]).is_loopback:
        log.warning("requests go unencrypted: pip install 'trimaran[encryption]' on both hosts")
    return records
