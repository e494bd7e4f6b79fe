"""Hosts on this machine that reach each other over a network which delays packets, loses them, or is down.

A host is a network namespace (``wire.py``). Where the system lets nobody make any, ``ConfigError`` says so.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

import msgspec

from trimaran.base.errors import ConfigError
from trimaran.bench.wire import Carried, Failed, Ready, Weather

ADDRESSES = ("10.77.0.1", "10.77.0.2")  # of the hosts; nobody else can see them


class Network:
    """Two hosts, until it is left. Processes in them are the caller's to end."""

    def __init__(self, weather: Weather | None = None) -> None:
        """Raises ``ConfigError`` where there can be none."""
        if sys.platform != "linux" or shutil.which("nsenter") is None:
            raise ConfigError("hosts on one machine are network namespaces: they need Linux, and nsenter of util-linux")
        self._wire = subprocess.Popen(
            [sys.executable, "-m", "trimaran.bench.wire", *ADDRESSES], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        found = msgspec.json.decode(self._read() or b'{"type":"Failed","why":"it ended"}', type=Ready | Failed)
        if isinstance(found, Failed):
            self.close()
            raise ConfigError(f"cannot make hosts on this machine: {found.why}")
        self._found = found
        self.become(weather or Weather())

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """What runs ``command`` on a host, from outside."""
        user = f"--user=/proc/{self._found.pid}/ns/user"
        return ["nsenter", user, *self._network(host), *command]

    def from_within(self, host: int, command: Sequence[str]) -> list[str]:
        """As ``command``, for a process that is on one of the hosts."""
        return ["nsenter", *self._network(host), *command]

    def become(self, weather: Weather) -> Carried:
        """From now on packets fare so; what has become of those until now."""
        assert self._wire.stdin is not None
        self._wire.stdin.write(msgspec.json.encode(weather) + b"\n")
        self._wire.stdin.flush()
        return msgspec.json.decode(self._read(), type=Carried)

    def close(self) -> None:
        """Idempotent."""
        self._wire.communicate()

    def __enter__(self) -> "Network":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _network(self, host: int) -> list[str]:
        return [f"--net=/proc/{self._found.pid}/fd/{self._found.namespaces[host]}"]

    def _read(self) -> bytes:
        assert self._wire.stdout is not None
        return self._wire.stdout.readline()
