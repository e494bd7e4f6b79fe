"""A link between two pools that does something wrong to one message of a transfer."""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from trimaran.bench.fuzz.damage import damaged_json
from trimaran.pools.hello import Hello
from trimaran.pools.link import Link, Transport, UInt8
from trimaran.pools.transfer import Commit, Message, PageFrame

Plans = dict[str, tuple[str, int]]  # by transfer: the fault, and how many frames go before it


class FaultyTransport:
    """Senders' links of ``transport`` are faulty. ``done`` are the transfers that something was done to."""

    def __init__(self, transport: Transport, plans: Plans) -> None:
        self.name = transport.name
        self._transport = transport
        self._plans = plans
        self.done: set[str] = set()

    def listen(self, hello: Hello, address: str | None = None) -> Any:
        return self._transport.listen(hello, address)

    def connect(self, address: str, hello: Hello) -> Any:
        return _FaultyLink(self._transport.connect(address, hello), self._plans, self.done)


class _FaultyLink:
    """See ``Link``."""

    def __init__(self, link: Link, plans: Plans, done: set[str]) -> None:
        self._link = link
        self._plans = plans
        self._done = done

    def send(self, message: Message, data: UInt8 | None = None) -> bool:
        fault, frames = self._plans.get(message.transfer, ("", 0))
        if not fault or not isinstance(message, PageFrame | Commit):
            return self._link.send(message, data)
        if frames and isinstance(message, PageFrame):
            self._plans[message.transfer] = fault, frames - 1
            return self._link.send(message, data)
        if isinstance(message, PageFrame) and not self._link.room():
            return False
        del self._plans[message.transfer]
        self._done.add(message.transfer)
        return FAULTS[fault](self._link, message, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


def _drop(link: Link, message: Message, data: UInt8 | None) -> bool:  # noqa: ARG001  # all faults have one shape
    return True


def _duplicate(link: Link, message: Message, data: UInt8 | None) -> bool:
    sent = link.send(message, data)
    if data is None or link.room():
        link.send(message, data)
    return sent


def _reorder(link: Link, message: PageFrame | Commit, data: UInt8 | None) -> bool:
    """It overtakes the one before it: there is a gap where it comes."""
    return link.send(structs.replace(message, number=message.number + 1), data)


def _corrupt(link: Link, message: PageFrame | Commit, data: UInt8 | None) -> bool:
    if data is None:
        return link.send(structs.replace(message, digest=bytes(32)))
    other = np.array(data)
    other.reshape(-1)[other.size // 2] ^= 1
    return link.send(message, other)


def _misplace(link: Link, message: PageFrame | Commit, data: UInt8 | None) -> bool:
    if isinstance(message, Commit):
        return _corrupt(link, message, data)
    return link.send(structs.replace(message, first=message.first + 1), data)


def _late(link: Link, message: PageFrame | Commit, data: UInt8 | None) -> bool:
    """It was meant for a process that has been started again since."""
    return link.send(structs.replace(message, epoch=message.epoch ^ 1), data)


def _nonsense(link: Link, message: PageFrame | Commit, data: UInt8 | None) -> bool:
    """Fields hold anything that fits their types. Which tokens an engine has chosen is its own affair: nobody could
    tell that they are wrong."""
    random, kept = Random(f"{message.transfer} {message.number}"), {"tokens", "cached"}
    fields = {name: value for name, value in structs.asdict(message).items() if name not in kept}
    other: Any = message
    while other == message:
        damaged = damaged_json(random, fields)
        if not isinstance(damaged, dict):
            continue
        values = [damaged.get(name, getattr(message, name)) for name in message.__struct_fields__]
        try:
            other = msgspec.convert([type(message).__struct_config__.tag, *values], type(message))
        except msgspec.ValidationError:
            continue
    return link.send(other, data)


FAULTS: dict[str, Callable[[Link, Any, UInt8 | None], bool]] = {
    "drop": _drop,
    "duplicate": _duplicate,
    "reorder": _reorder,
    "corrupt": _corrupt,
    "misplace": _misplace,
    "late": _late,
    "nonsense": _nonsense,
}
