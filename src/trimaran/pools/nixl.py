"""Links whose pages go by NIXL, which writes into the receiver's memory by the fastest way that it finds: RDMA between
hosts that have it, else shared memory, copies between processes, or TCP. Everything else goes over a TCP link.

NIXL and UCX below it do not know the deployment's key: whoever can reach their ports can try to write to the slots of a
link. They can never reach pages, and what they write there is refused by its checksum unless it was made to fit; so
their networks should be the deployment's own. Between addresses of this host UCX is kept to the loopback device.

The package ``nixl`` chooses between builds for CUDA by importing torch if there is one. Here memory is the host's, for
which any build will do, so the builds are tried themselves.
"""

import atexit
import contextlib
import importlib
import ipaddress
import logging
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from trimaran.base.errors import ConfigError, TransferError
from trimaran.pools.carriage import SLOTS, Slots
from trimaran.pools.key import PoolKey
from trimaran.pools.link import STALL_SECONDS
from trimaran.pools.meeting import Carrier, Meeting
from trimaran.pools.tcp import TcpTransport

EXIT_SECONDS = 1.0  # that the end of a process waits for links that are being closed

_BUILDS = ("nixl_cu13", "nixl_cu12")
_DEVICES = "UCX_NET_DEVICES"
_IN_MEMORY = "DRAM"
_PAUSE = 20e-6  # seconds between looks at a write that goes on

_making_agents = threading.Lock()  # while it is held the environment may be another


class NixlTransport(TcpTransport):
    """Raises ``ConfigError`` where NIXL is not installed."""

    name = "nixl"

    def __init__(self, key: PoolKey) -> None:
        super().__init__(key)
        load_nixl()
        self.carrier = Carrier(_Memory, _Writer)


def load_nixl() -> Any:
    """NIXL's Python module; raises ``ConfigError`` when none can be imported."""
    os.environ.setdefault("UCX_LOG_FILE", "stderr")  # else it is standard output, where data goes
    failures = []
    for name in _BUILDS:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            failures.append(str(error))
            continue
        logger = logging.getLogger("nixl")  # which NIXL has set to write to standard output
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)
        return module
    raise ConfigError(
        f"the nixl transport needs NIXL, which is not installed ({'; '.join(failures)}): pip install 'trimaran[nixl]', "
        "or without torch, which it does not need here, pip install --no-deps nixl-cu12"
    )


class _Offer(msgspec.Struct, frozen=True, array_like=True):
    """Where the sender may write."""

    metadata: bytes
    base: int


class _End(Slots, ABC):
    """What both ends of a carriage have: an agent, and slots in memory that it knows."""

    def __init__(self, meeting: Meeting) -> None:
        size = SLOTS * meeting.frame_bytes
        super().__init__(np.zeros(size, np.uint8), meeting.frame_bytes)
        with _as_transfer_error():
            self._agent: Any = _new_agent(_is_loopback(meeting))
            self._registered = self._agent.register_memory([(self._memory.ctypes.data, size, 0, "")], _IN_MEMORY)
        _ends.add(self)
        try:
            self._agree(meeting)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _agree(self, meeting: Meeting) -> None:
        """Tells the other side what it has to know, or learns it."""

    def close(self) -> None:
        """The memory stays while views of it are held."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        with contextlib.suppress(TransferError), _as_transfer_error():  # it ends here, whatever it says
            agent.deregister_memory(self._registered)
        del agent  # ends its threads
        _ends.discard(self)


class _Memory(_End):
    """See ``SlotMemory``. The memory is given back once the sender's process has let go of the link: until then a write
    may be under way."""

    one_sided = True

    def _agree(self, meeting: Meeting) -> None:
        offer = _Offer(self._agent.get_agent_metadata(), self._memory.ctypes.data)
        meeting.records.write(msgspec.msgpack.encode(offer), seconds=meeting.until - time.monotonic())


class _Writer(_End):
    """See ``SlotWriter``."""

    def _agree(self, meeting: Meeting) -> None:
        head, _ = meeting.records.read(0, meeting.until - time.monotonic())
        try:
            offer = msgspec.msgpack.decode(head, type=_Offer)
        except msgspec.MsgspecError as error:
            raise TransferError(f"{meeting.peer.name} has not said where to write: {error}") from None
        self._base = offer.base
        with _as_transfer_error():
            self._remote = self._agent.add_remote_agent(offer.metadata)
            self._agent.make_connection(self._remote)

    def write(self, slot: int, size: int) -> None:
        until = time.monotonic() + STALL_SECONDS
        with _as_transfer_error():
            agent = self._agent
            start = slot * self._frame_bytes
            mine = agent.get_xfer_descs([(self._memory.ctypes.data + start, size, 0)], _IN_MEMORY)
            theirs = agent.get_xfer_descs([(self._base + start, size, 0)], _IN_MEMORY)
            handle = agent.initialize_xfer("WRITE", mine, theirs, self._remote)
            try:
                state = agent.transfer(handle)
                while state == "PROC" and time.monotonic() < until:
                    time.sleep(_PAUSE)
                    state = agent.check_xfer_state(handle)
            finally:
                agent.release_xfer_handle(handle)
        if state != "DONE":
            raise TransferError(f"NIXL has not written {size} bytes: {state}")


_ends: set[_End] = set()  # that have an agent


@atexit.register
def _end_agents() -> None:
    """NIXL aborts a process that ends while its threads run: links that are being closed get a moment to end theirs,
    others lose them."""
    for seconds in (EXIT_SECONDS, 2 * EXIT_SECONDS):
        until = time.monotonic() + seconds
        while _ends and time.monotonic() < until:
            time.sleep(0.01)
        for end in list(_ends):
            end.close()


def _new_agent(loopback: bool) -> Any:
    """One for each link, so that none outlives it. Takes half a second."""
    nixl = load_nixl()
    name = f"trimaran-{secrets.token_hex(16)}"
    with _making_agents, _devices("lo" if loopback else None):
        return nixl.nixl_agent(name, nixl.nixl_agent_config(backends=["UCX"]))


@contextmanager
def _devices(only: str | None) -> Iterator[None]:
    """Keeps agents that are made meanwhile to a network device, unless the user has named some."""
    if only is None or _DEVICES in os.environ:
        yield
        return
    os.environ[_DEVICES] = only
    try:
        yield
    finally:
        del os.environ[_DEVICES]


@contextmanager
def _as_transfer_error() -> Iterator[None]:
    """NIXL's errors have no root of their own."""
    try:
        yield
    except TransferError:
        raise
    except Exception as error:
        raise TransferError(f"NIXL: {error}") from None


def _is_loopback(meeting: Meeting) -> bool:
    address = meeting.records.stream.socket.getpeername()[0]
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
