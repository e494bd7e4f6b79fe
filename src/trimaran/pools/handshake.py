"""How two engines meet on a fresh connection: each proves that it has the deployment's key, then says what it is.

    both:    what this is, and 32 random bytes
    dialler: a keyed hash of both random numbers, under the deployment's key
    listener: the same for another purpose; bytes of no meaning if the dialler's was wrong
    both:    ``Hello``, from here on in records (``records.py``) whose keys are made of key and random numbers

Neither learns anything about the key from the other's part, and what is recorded cannot be replayed. The first bytes
have a fixed size, so a stranger makes the listener do next to nothing.
"""

import hmac
import secrets
import time

from trimaran.base.errors import PeerError, TransferError
from trimaran.pools.hello import Hello, check_hello, decode_hello, encode_hello
from trimaran.pools.key import PoolKey
from trimaran.pools.records import Records
from trimaran.pools.stream import Stream
from trimaran.pools.transfer import PROTOCOL

PAGES = b"trimaran pools" + PROTOCOL.to_bytes(2, "little")  # purposes have the same length
MESSAGES = b"trimaran lines" + PROTOCOL.to_bytes(2, "little")
_NONCE = 32
_PROOF = 32
_DIALLER, _LISTENER = b"pools: who dialled", b"pools: who listened"
_FROM_DIALLER, _FROM_LISTENER = b"pools: records from who dialled", b"pools: records from who listened"


def meet(stream: Stream, key: PoolKey, hello: Hello, *, dialled: bool, until: float) -> tuple[Records, Hello]:
    """The connection's records and who is at the other end, ``until`` then at the latest (``time.monotonic``).

    Raises ``PeerError`` when the other side has another key or cannot work with this one, ``TransferError`` when the
    connection breaks or it takes too long.
    """
    records = prove(stream, key, hello.name, PAGES, dialled=dialled, until=until)
    records.write(encode_hello(hello), seconds=until - time.monotonic())
    head, _ = records.read(0, until - time.monotonic())
    peer = decode_hello(head)
    check_hello(hello, peer)
    return records, peer


def prove(stream: Stream, key: PoolKey, name: str, purpose: bytes, *, dialled: bool, until: float) -> Records:
    """The records of a connection whose ends have proved to each other that they have the key, for one ``purpose``.

    Raises as ``meet`` does; ``name`` is ours, for people.
    """
    mine = secrets.token_bytes(_NONCE)
    stream.write([purpose, mine], until)
    theirs = _read_first(stream, purpose, until)
    nonces = (purpose, mine, theirs) if dialled else (purpose, theirs, mine)
    keys_differ = f"{name} and the other side have different pool keys"
    if dialled:
        stream.write([key.mac(_DIALLER, *nonces)], until)
        if not hmac.compare_digest(_read(stream, _PROOF, until), key.mac(_LISTENER, *nonces)):
            raise PeerError(keys_differ)
        return Records(stream, key.mac(_FROM_DIALLER, *nonces), key.mac(_FROM_LISTENER, *nonces))
    if not hmac.compare_digest(_read(stream, _PROOF, until), key.mac(_DIALLER, *nonces)):
        stream.write([bytes(_PROOF)], until)
        raise PeerError(keys_differ)
    stream.write([key.mac(_LISTENER, *nonces)], until)
    return Records(stream, key.mac(_FROM_LISTENER, *nonces), key.mac(_FROM_DIALLER, *nonces))


def _read_first(stream: Stream, purpose: bytes, until: float) -> bytes:
    first = _read(stream, len(purpose) + _NONCE, until)
    what, nonce = first[: len(purpose)], first[len(purpose) :]
    if what[:-2] != purpose[:-2]:
        raise TransferError("the other side is not an engine of Trimaran, or listens for something else")
    if what != purpose:
        theirs = int.from_bytes(what[-2:], "little")
        raise PeerError(f"the other side's protocol is {theirs}, ours is {PROTOCOL}")
    return nonce


def _read(stream: Stream, size: int, until: float) -> bytes:
    data = bytearray(size)
    stream.read(memoryview(data), until)
    return bytes(data)
