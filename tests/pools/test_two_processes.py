"""Two processes, one of which is killed, stopped or started again, or a frame is damaged: both sides get over it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from trimaran.pools.tcp import split_address

from .links import NAMES, PATIENCE, ROOT
from .transfers import EPOCH

LEASE = 60.0

pytestmark = [pytest.mark.usefixtures("nothing_left")]


class Peer:
    """A process of ``peer.py``."""

    def __init__(self, side: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pools.peer", side],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def command(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def until(self, what: str) -> dict[str, Any]:
        """The next thing that it says of this kind; what it says before is dropped."""
        assert self._process.stdout is not None
        alarm = threading.Timer(PATIENCE, self._process.kill)
        alarm.start()
        try:
            for line in self._process.stdout:
                said: dict[str, Any] = json.loads(line)
                if what in said:
                    return said
        finally:
            alarm.cancel()
            alarm.join()
        pytest.fail(f"it ended without saying {what!r}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def peers(*sides: str) -> Iterator[list[Peer]]:
    """Processes that have started, all at the same time, and wait for their first command."""
    started = [Peer(side) for side in sides]
    try:
        for peer in started:
            peer.until("ready")
        yield started
    finally:
        for peer in started:
            peer.end()


def begin(
    name: str, one: Peer, other: Peer | None = None, *, lease: float = LEASE, frames: int | None = None, **more: Any
) -> dict[str, Any]:
    """Tells a receiver to expect a prompt, and a sender to send so many messages of it; what the first says of it."""
    one.command(transport=name, lease=lease, **({"address": None, "epoch": EPOCH} | more))
    told = one.until("address")
    if other is not None:
        send(name, other, told, frames)
    return told


def send(name: str, other: Peer, told: dict[str, Any], frames: int | None = None) -> None:
    other.command(transport=name, address=told["address"], ticket=told["ticket"], frames=frames)


def memory() -> set[str]:
    return set(os.listdir("/dev/shm"))  # noqa: PTH208  # names are enough


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_goes_from_one_process_to_another(name: str) -> None:
    before = memory()
    with peers("receive", "send") as (one, other):
        begin(name, one, other)
        assert one.until("admitted")["right"]
        assert other.until("end")["end"] == "taken"
        assert other.until("left")["left"] == [0, 0]
        nothing_open(one)
    assert memory() == before


def nothing_open(one: Peer) -> None:
    one.command()
    assert one.until("open")["open"] == 0
    assert one.until("left")["left"] == [0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_the_sender_is_killed_in_the_middle(name: str) -> None:
    before = memory()
    with peers("receive", "send") as (one, other):
        begin(name, one, other, frames=5)
        one.until("began")
        other.signal(signal.SIGKILL)
        assert one.until("failed")["failed"] == "link", "at once, not when the lease ends"
        nothing_open(one)
    assert memory() == before


@pytest.mark.parametrize("name", NAMES)
def test_the_receiver_is_killed_in_the_middle(name: str) -> None:
    before = memory()
    with peers("receive", "send") as (one, other):
        begin(name, one, other, frames=5)
        one.until("began")
        one.signal(signal.SIGKILL)
        other.command()
        end = other.until("end")
        assert (end["end"], end["cause"]) == ("failed", "link")
        assert other.until("left")["left"] == [0, 0]
    assert memory() == before


@pytest.mark.parametrize("name", ["tcp", "shm"])
def test_started_again_on_the_same_address_it_refuses_what_was_meant_for_the_one_before(name: str) -> None:
    with peers("receive", "receive", "send") as (one, again, other):
        old = begin(name, one)
        one.signal(signal.SIGKILL)
        one.end()
        told = begin(name, again, address=old["address"], epoch=EPOCH + 1)
        assert told["address"] == old["address"]
        send(name, other, old)
        end = other.until("end")
        assert end["cause"] == "epoch"
        assert f"{EPOCH:016x}" in end["text"]
        assert other.until("left")["left"] == [0, 0]
        again.command()
        assert again.until("open")["open"] == 1, "its own, which nobody has touched"


@pytest.mark.parametrize("name", ["tcp", "shm"])
def test_a_receiver_that_stands_still_is_waited_for_until_the_deadline(name: str) -> None:
    with peers("receive", "send") as (one, other):
        begin(name, one, other, lease=1.0, frames=2)
        one.until("began")
        one.signal(signal.SIGSTOP)
        other.command()
        assert other.until("end")["cause"] == "expired"
        assert other.until("left")["left"] == [0, 0]


@pytest.mark.parametrize("name", ["tcp", "shm"])
def test_a_sender_that_stands_still_is_waited_for_until_the_lease_ends(name: str) -> None:
    with peers("receive", "send") as (one, other):
        begin(name, one, other, lease=1.0, frames=2)
        one.until("began")
        other.signal(signal.SIGSTOP)
        assert one.until("failed")["failed"] == "expired"
        other.signal(signal.SIGCONT)
        other.command()
        assert other.until("end")["end"] == "failed"
        nothing_open(one)


@pytest.mark.parametrize(("damage", "text"), [("flip", "altered"), ("drop", ""), ("cut", "closed")])
def test_what_is_damaged_on_the_network_breaks_the_link_and_admits_nothing(damage: str, text: str) -> None:
    with peers("receive", "send") as (one, other):
        told = begin("tcp", one)
        with network(told["address"], damage) as address:
            send("tcp", other, told | {"address": address})
            failed = one.until("failed")
            assert failed["failed"] == "link"
            assert text in failed["text"]
            assert other.until("end")["cause"] == "link"
        nothing_open(one)


def test_over_a_slow_network_it_takes_longer() -> None:
    with peers("receive", "send") as (one, other):
        told = begin("tcp", one)
        with network(told["address"], "slow") as address:
            send("tcp", other, told | {"address": address})
            assert one.until("admitted")["right"]
            assert other.until("end")["end"] == "taken"
            assert other.until("left")["left"] == [0, 0]
        nothing_open(one)


@contextmanager
def network(address: str, damage: str) -> Iterator[str]:
    """A way to ``address`` that is slow, or does something to what comes after 20 KB."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_forward, args=(listening, split_address(address), damage))
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    thread.join(PATIENCE)


def _forward(listening: socket.socket, target: tuple[str, int], damage: str) -> None:
    near, _ = listening.accept()
    far = socket.create_connection(target)
    back = threading.Thread(target=_copy, args=(far, near, None))
    back.start()
    _copy(near, far, damage)
    back.join(PATIENCE)
    near.close()
    far.close()


def _copy(from_: socket.socket, to: socket.socket, damage: str | None) -> None:
    place = 0
    with suppress(OSError):
        while data := bytearray(from_.recv(1000)):
            before, place = place, place + len(data)
            if damage == "slow":
                time.sleep(0.003)
            elif damage is not None and before <= 20_000 < place:
                at = 20_000 - before
                if damage == "cut":
                    break
                if damage == "flip":
                    data[at] ^= 1
                else:
                    del data[at]
            to.sendall(data)
    for end in (from_, to):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
