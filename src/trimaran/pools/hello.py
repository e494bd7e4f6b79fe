"""What two engines tell each other when they meet, and whether they can work together at all."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from trimaran.base.errors import PeerError
from trimaran.pools.layout import LayoutData, check_layouts
from trimaran.pools.seals import ciphers
from trimaran.pools.transfer import PROTOCOL, Number

MAX_FRAME_BYTES = 1 << 30

Role = Literal["sender", "receiver"]


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One side's description of itself. The sender is who connects."""

    role: Role
    name: Annotated[str, Meta(max_length=200)]  # of the worker, for people
    epoch: Number
    model: Annotated[str, Meta(max_length=200)]  # digest
    layout: LayoutData
    transports: Annotated[list[str], Meta(max_length=8)]
    frame_bytes: Annotated[int, Meta(ge=0, le=MAX_FRAME_BYTES)]  # most data of a frame that it takes; sender: 0
    ciphers: Annotated[list[str], Meta(max_length=8)] = msgspec.field(default_factory=ciphers)
    protocol: int = PROTOCOL


def check_hello(mine: Hello, theirs: Hello) -> None:
    """Raises ``PeerError``, naming both sides' values, when no transfer between these two could ever work."""
    for what, ours, other in (
        ("protocol", mine.protocol, theirs.protocol),
        ("model digest", mine.model, theirs.model),
    ):
        if ours != other:
            raise PeerError(f"{_between(mine, theirs)}: their {what} is {other}, ours is {ours}")
    if mine.role == theirs.role:
        raise PeerError(f"{_between(mine, theirs)}: both would be the {mine.role}")
    if not set(mine.transports) & set(theirs.transports):
        lists = [", ".join(each.transports) or "none" for each in (theirs, mine)]
        raise PeerError(f"{_between(mine, theirs)}: their transports are {lists[0]}, ours are {lists[1]}")
    sender, receiver = (mine, theirs) if mine.role == "sender" else (theirs, mine)
    try:
        check_layouts(sender.layout, receiver.layout)
    except PeerError as error:
        raise PeerError(f"{_between(mine, theirs)}: {error}") from None


def encode_hello(hello: Hello) -> bytes:
    return msgspec.msgpack.encode(hello)


def decode_hello(data: bytes) -> Hello:
    """Raises ``PeerError`` for what is no greeting of this protocol, with the protocol's number where it has one."""
    try:
        protocol = msgspec.msgpack.decode(data, type=_Protocol).protocol
        if protocol != PROTOCOL:
            raise PeerError(f"the other side's protocol is {protocol}, ours is {PROTOCOL}")
        return msgspec.msgpack.decode(data, type=Hello)
    except msgspec.MsgspecError as error:
        raise PeerError(f"the other side's greeting cannot be read: {error}") from None


def _between(mine: Hello, theirs: Hello) -> str:
    return f"{mine.name} and {theirs.name} cannot exchange pages"


class _Protocol(msgspec.Struct):
    protocol: int
