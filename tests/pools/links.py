"""Both ends of a link in one process."""

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimaran.base.errors import ConfigError
from trimaran.pools.key import PoolKey
from trimaran.pools.link import Arrival, Link, Listener, Transport
from trimaran.pools.nixl import load_nixl
from trimaran.pools.transfer import Message
from trimaran.pools.transports import TRANSPORTS, open_transport

from .transfers import KEY, hello

Take = Callable[[Message, np.ndarray | None], Any]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0  # seconds; nothing here should take one


def _has_nixl() -> bool:
    try:
        load_nixl()
    except ConfigError:
        return False
    return True


NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(name == "nixl" and not _has_nixl(), reason="NIXL is not installed"))
    for name in TRANSPORTS
]


def transport(name: str, key: PoolKey = KEY) -> Transport:
    return open_transport(name, key)


def wait_for(what: Callable[[], Any], *pollable: Link | Listener) -> Any:
    """The first true value of ``what``; polls, where there is something to poll, as an engine's loop would."""
    until = time.monotonic() + PATIENCE
    while True:
        if found := what():
            return found
        if time.monotonic() > until:
            pytest.fail("nothing happened")
        if pollable:
            select.select(pollable, [], [], 1.0)
        else:
            time.sleep(0.005)


def receive(link: Link, count: int) -> list[Arrival]:
    """The next ``count`` arrivals, at least."""
    found: list[Arrival] = []

    def enough() -> bool:
        found.extend(link.receive())
        return len(found) >= count or link.failure is not None

    wait_for(enough, link)
    return found


@contextmanager
def pair(name: str) -> Iterator[tuple[Link, Link]]:
    """Sender and receiver that have met."""
    listener = transport(name).listen(hello("receiver"))
    sender = transport(name).connect(listener.address, hello("sender"))
    receiver = None
    try:
        (receiver,) = wait_for(listener.accept, listener)
        wait_for(lambda: sender.peer or sender.failure)
        assert sender.failure is None
        yield sender, receiver
    finally:
        listener.close()
        sender.close()
        if receiver is not None:
            receiver.close()


def pump(sender: Link, receiver: Link, sent: list[tuple[Message, np.ndarray | None]], take: Take) -> None:
    """Sends everything, and hands what arrives to ``take`` and frees it, as two engines' loops would."""
    waiting, came = list(sent), 0
    until = time.monotonic() + PATIENCE
    while came < len(sent):
        while waiting and sender.send(*waiting[0]):
            waiting.pop(0)
        for arrival in receiver.receive():
            take(arrival.message, arrival.data)
            arrival.free()
            came += 1
        if came < len(sent):
            select.select([sender, receiver], [], [], 1.0)
            sender.receive()
        assert receiver.failure is None
        assert time.monotonic() < until, "nothing happened"
