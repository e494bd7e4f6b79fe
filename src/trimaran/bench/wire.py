"""Network namespaces, and the wire between them: ``python -m trimaran.bench.wire ADDRESS...``, one for each.

Each namespace has a TUN device. What is sent there comes here, packet by packet, and reaches the namespace of its
destination later, in another order, or never: the kernel's own TCP at both ends sends it again. So it takes neither
privileges, where users may make namespaces, nor netem, which many kernels lack.

Standard input has ``Weather`` as lines of JSON, each answered by a line with ``Carried``; its end ends the wire, and
the namespaces with the last process in them. The first line of the answers is ``Ready``, or ``Failed``.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import sys
import time
from itertools import count
from pathlib import Path

import msgspec

MTU = 1500
PENDING = 1 << 15  # packets under way at once; what is more is dropped, as by any router
PACKETS = 64  # taken from a device before another has its turn

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_TUNSETIFF, _TUN_PLAIN = 0x400454CA, 0x0001 | 0x1000  # packets of IP, and nothing before them
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
_UP = 0x1


class Weather(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of each packet, in either direction."""

    delay: float = 0.0  # seconds
    jitter: float = 0.0  # seconds more or less, at most: packets overtake each other
    loss: float = 0.0  # probability
    up: bool = True


class Carried(msgspec.Struct, frozen=True):
    """Packets since the start."""

    delivered: int
    lost: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """``namespaces``: descriptors of this process, one for each address."""

    pid: int
    namespaces: list[int]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Why there is no network."""

    why: str


class Wire:
    """Carries packets between ``devices``, by the address of each, until standard input ends."""

    def __init__(self, devices: dict[bytes, int]) -> None:
        self._devices = devices
        self._weather = Weather()
        self._pending: list[tuple[float, int, int, bytes]] = []  # when it is due, order, device, packet
        self._order = count()
        self._random = random.Random(0)
        self._delivered = self._lost = 0

    def run(self) -> None:
        devices = list(self._devices.values())
        while True:
            wait = max(0.0, self._pending[0][0] - time.monotonic()) if self._pending else None
            readable, _, _ = select.select([0, *devices], [], [], wait)
            for device in devices:
                if device in readable:
                    self._take(device)
            self._deliver(time.monotonic())
            if 0 in readable:
                line = sys.stdin.buffer.readline()
                if not line:
                    return
                self._weather = msgspec.json.decode(line, type=Weather)
                _say(Carried(self._delivered, self._lost))

    def _take(self, device: int) -> None:
        weather, now = self._weather, time.monotonic()
        for _ in range(PACKETS):
            try:
                packet = os.read(device, MTU)
            except BlockingIOError:
                return
            target = self._devices.get(packet[16:20]) if packet[0] >> 4 == 4 else None  # IPv4 has its destination there
            if target is None:
                continue
            lost = not weather.up or len(self._pending) >= PENDING or self._random.random() < weather.loss
            if lost:
                self._lost += 1
                continue
            due = now + weather.delay + weather.jitter * self._random.uniform(-1, 1)
            heapq.heappush(self._pending, (due, next(self._order), target, packet))

    def _deliver(self, now: float) -> None:
        while self._pending and self._pending[0][0] <= now:
            _, _, device, packet = heapq.heappop(self._pending)
            os.write(device, packet)
            self._delivered += 1


def open_namespace(address: str) -> tuple[int, int]:
    """Descriptors of a fresh network namespace, in which this process is from now on, and of its only way out."""
    _unshare(_NEWNET)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = b"wire"
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name, _TUN_PLAIN))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for call, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
            place = struct.pack("16sH2x4s16x", name, socket.AF_INET, socket.inet_aton(value))
            fcntl.ioctl(any_socket, call, place)
        fcntl.ioctl(any_socket, _SIOCSIFMTU, struct.pack("16si20x", name, MTU))
        for each in (name, b"lo"):
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", each, _UP))
    return os.open("/proc/self/ns/net", os.O_RDONLY), device


def become_root() -> None:
    """In a user namespace of its own, where everybody may make networks: root there is who this user is outside."""
    user, group = os.geteuid(), os.getegid()
    _unshare(_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path("/proc/self", name).write_text(text)


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"this system makes no namespaces: {os.strerror(number)}")


def _say(what: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    try:
        become_root()
        found = {socket.inet_aton(address): open_namespace(address) for address in sys.argv[1:]}
    except (OSError, AttributeError) as error:
        _say(Failed(str(error)))
        return 1
    _say(Ready(os.getpid(), [namespace for namespace, _ in found.values()]))
    Wire({address: device for address, (_, device) in found.items()}).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
