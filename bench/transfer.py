"""How fast pages go from one process to another over each kind of link, beside what memory and loopback TCP can do.

    python bench/transfer.py
    python bench/transfer.py --tokens 512 --format bf16 --transports shm
    python bench/transfer.py --tokens 512 --rounds 3 --delay 20 --loss 1

A prompt's pages, those of SmolLM2-135M, go through everything that a transfer between two engines consists of: copied
out of the sender's pages a batch at a time, checked, sent, received, checked again, copied into the receiver's pages,
committed and acknowledged. Beside it stand a copy of the same bytes in one process (*memcpy*), and the same bytes sent
over a bare TCP connection on loopback to a process that only receives them (*loopback*). All take turns in each round;
the median counts. *One page*: the time until a transfer of a single page is acknowledged. *tcp, open* is authenticated
and not encrypted, as between hosts of which one has no ``cryptography``. *CPU*: processor time of both processes, which
neighbours disturb less than they do the time that passes.

With ``--delay`` or ``--loss`` the two processes are on hosts of their own (``trimaran.bench.network``), between which
packets are late or lost; pages go by TCP, and *loopback* is a bare TCP connection between the two.
"""

import argparse
import json
import secrets
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from trimaran.base.errors import ConfigError, TrimaranError
from trimaran.base.formats import CacheGroup, HeadsCache, KVFormat
from trimaran.base.messages import Token
from trimaran.bench.network import ADDRESSES, Network
from trimaran.bench.wire import Weather
from trimaran.kernels.handoff import BATCH_BYTES, largest_batch
from trimaran.kernels.page_layout import PageLayout
from trimaran.pools.arrivals import Arrivals
from trimaran.pools.hello import Hello, Role
from trimaran.pools.key import PoolKey, new_key_text
from trimaran.pools.layout import layout_data
from trimaran.pools.link import Link
from trimaran.pools.receiving import Admit, Import, Refusal
from trimaran.pools.seals import ciphers
from trimaran.pools.sending import Sending
from trimaran.pools.ticket import TICKET_VERSION, Ticket, TicketPages, digest_of_tokens, open_ticket
from trimaran.pools.transfer import Answer, Frame
from trimaran.pools.transports import TRANSPORTS, open_transport

PAGE = 16
MODEL = "bench"
SECONDS = 60.0  # of a transfer, at most


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048, help="length of the prompt")
    parser.add_argument("--format", type=KVFormat, default=KVFormat.INT8, choices=list(KVFormat), help="of the pages")
    parser.add_argument("--transports", nargs="+", default=list(TRANSPORTS), choices=list(TRANSPORTS))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--delay", type=float, metavar="MS", help="between two hosts, each way")
    parser.add_argument("--loss", type=float, metavar="PERCENT", help="of packets between two hosts")
    parser.add_argument("--receiver", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--there", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.receiver:
        return receive(given)
    if given.there is None and (given.delay is not None or given.loss is not None):
        return from_host_to_host(given)
    other = Other("127.0.0.1", "127.0.0.1", []) if given.there is None else Other(*ADDRESSES, given.there)
    layout = layout_of(given.format)
    pages = random_pages(layout, given.tokens)
    with ExitStack() as stack:
        ways: dict[str, Way] = {
            "memcpy": Copy(pages),
            "loopback": stack.enter_context(loopback(pages, other)),
        }
        for name in given.transports:
            try:
                ways[name] = stack.enter_context(transfers(name, given, other, layout, pages))
                if name == "tcp" and ciphers():
                    open_ = transfers(name, given, other, layout, pages, encrypted=False)
                    ways["tcp, open"] = stack.enter_context(open_)
            except ConfigError as error:
                print(f"{name}: {error}", file=sys.stderr)
        whole: dict[str, list[Spent]] = {name: [] for name in ways}
        short: dict[str, list[Spent]] = {name: [] for name in ways}
        for number in range(given.rounds + 1):
            for name, way in ways.items():
                spent = way(given.tokens), way(PAGE)
                if number:  # the first warms everything up
                    whole[name].append(spent[0])
                    short[name].append(spent[1])
    report(pages.nbytes, whole, short)
    return 0


class Other(NamedTuple):
    """Where the other process is."""

    here: str  # address of this process's host
    there: str
    command: list[str]  # what runs a command there


def from_host_to_host(given: argparse.Namespace) -> int:
    """This program again, on one of two hosts."""
    options = ["--tokens", str(given.tokens), "--format", given.format, "--rounds", str(given.rounds)]
    with Network(Weather(delay=(given.delay or 0) / 1e3, loss=(given.loss or 0) / 1e2)) as network:
        there = ["--transports", "tcp", "--there", *network.from_within(1, [])]
        return subprocess.run(network.command(0, [sys.executable, __file__, *options, *there])).returncode


class Spent(NamedTuple):
    """Of one prompt."""

    seconds: float
    cpu: float  # seconds, of both processes


Way = Callable[[int], Spent]  # with a prompt of so many tokens


def report(size: int, whole: dict[str, list[Spent]], short: dict[str, list[Spent]]) -> None:
    medians = {name: median(each) for name, each in whole.items()}
    memcpy, bare = medians["memcpy"].seconds, medians["loopback"].seconds
    print(f"{size / 1e6:.1f} MB in batches of {BATCH_BYTES / (1 << 20):.0f} MiB")
    print("way            ms     MB/s   of memcpy  of loopback   CPU ms  one page, us")
    for name, (seconds, cpu) in medians.items():
        speed = f"{1e3 * seconds:8.1f}{size / seconds / 1e6:9,.0f}{memcpy / seconds:12.1%}{bare / seconds:13.1%}"
        print(f"{name:9}{speed}{1e3 * cpu:9.1f}{1e6 * median(short[name]).seconds:14,.0f}")


def median(spent: list[Spent]) -> Spent:
    return Spent(*(statistics.median(each) for each in zip(*spent, strict=True)))


def layout_of(fmt: KVFormat) -> PageLayout:
    return PageLayout("native", fmt, PAGE, (CacheGroup((HeadsCache(layers=30, kv_heads=3, head_dim=64),)),))


def random_pages(layout: PageLayout, tokens: int) -> Any:
    """uint8 ``[pages, bytes]``."""
    shape = -(-tokens // PAGE), layout.page_bytes(0)
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def hello(role: Role, layout: PageLayout, name: str) -> Hello:
    frame_bytes = largest_batch(layout)
    return Hello(role, f"the {role}", secrets.randbits(62), MODEL, layout_data(layout), [name], frame_bytes)


class Copy:
    """The bytes of a prompt from one place in memory to another, a batch at a time, by one thread."""

    def __init__(self, pages: Any) -> None:
        self._pages, self._other = pages, np.zeros_like(pages)
        self._batch = max(1, BATCH_BYTES // pages.shape[1])

    def __call__(self, tokens: int) -> Spent:
        begun, start, end = time.process_time(), time.perf_counter(), -(-tokens // PAGE)
        for first in range(0, end, self._batch):
            some = slice(first, min(end, first + self._batch))
            np.copyto(self._other[some], self._pages[some])
        return Spent(time.perf_counter() - start, time.process_time() - begun)


_SINK = """
import socket, sys, time
connected = socket.create_connection((sys.argv[1], int(sys.argv[2])))
room = memoryview(bytearray(1 << 22))
while head := connected.recv(8, socket.MSG_WAITALL):
    left = int.from_bytes(head, "little")
    while left:
        left -= connected.recv_into(room, min(left, len(room)))
    connected.sendall(time.process_time_ns().to_bytes(8, "little"))
"""


@contextmanager
def loopback(pages: Any, other: Other) -> Iterator[Way]:
    """The bytes of a prompt to another process, which drops them, until it says that it has them."""
    with socket.create_server((other.here, 0)) as listening:
        port = listening.getsockname()[1]
        with subprocess.Popen([*other.command, sys.executable, "-c", _SINK, other.here, str(port)]) as sink:
            connected, _ = listening.accept()

            def burnt() -> float:
                connected.sendall(bytes(8))
                return time.process_time() + int.from_bytes(connected.recv(8), "little") / 1e9

            def send(tokens: int) -> Spent:
                data = pages[: -(-tokens // PAGE)].reshape(-1)
                begun, start = burnt(), time.perf_counter()
                connected.sendall(data.nbytes.to_bytes(8, "little"))
                connected.sendall(data)
                connected.recv(8)
                seconds = time.perf_counter() - start
                return Spent(seconds, burnt() - begun)

            try:
                yield send
            finally:
                connected.close()
                sink.wait(10)


@dataclass
class Sender:
    """Transfers over one link to a receiver that is another process."""

    link: Link
    key: PoolKey
    layout: PageLayout
    pages: Any
    process: subprocess.Popen[str]

    def __call__(self, tokens: int) -> Spent:
        begun, prompt = self._burnt(), np.arange(tokens)
        ticket = open_ticket(bytes.fromhex(ask(self.process, {"tokens": tokens})["ticket"]), self.key)
        start = time.perf_counter()
        sending = Sending(ticket, self.layout, MODEL, prompt, time.monotonic())
        while not sending.over:
            while (batch := sending.due(tokens, self.link.room())) is not None:
                data = self.link.lend(batch.size)
                assert data is not None
                np.copyto(data.reshape(batch.count, -1), self.pages[batch.first : batch.first + batch.count])  # exports
                self.link.send(sending.frame(batch, data), data)
                if sending.sent:
                    self.link.send(sending.commit([Token(0)]))
            select.select([self.link], [], [], 1.0)
            for arrival in self.link.receive():
                assert isinstance(arrival.message, Answer)
                sending.answer(arrival.message)
            if self.link.failure is not None:
                raise self.link.failure
        seconds = time.perf_counter() - start
        if sending.failure is not None:
            raise TrimaranError(sending.failure)
        return Spent(seconds, self._burnt() - begun)

    def _burnt(self) -> float:
        theirs: float = ask(self.process, {})["cpu"]
        return time.process_time() + theirs


@contextmanager
def transfers(
    name: str, given: argparse.Namespace, other: Other, layout: PageLayout, pages: Any, *, encrypted: bool = True
) -> Iterator[Sender]:
    """Raises ``ConfigError`` where the transport cannot be used."""
    text = new_key_text()
    transport = open_transport(name, PoolKey(text))
    options = ["--receiver", "--tokens", str(given.tokens), "--format", given.format, "--transports", name]
    command = [*other.command, sys.executable, __file__, *options]
    where = f"{other.there}:0" if name == "tcp" else None
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        address = ask(process, {"key": text, "listen": where})["address"]
        me = hello("sender", layout, name)
        link = transport.connect(address, me if encrypted else structs.replace(me, ciphers=[]))
        try:
            while link.peer is None and link.failure is None:
                select.select([link], [], [], 1.0)
                link.receive()
            if link.failure is not None:
                raise link.failure
            yield Sender(link, PoolKey(text), layout, pages, process)
        finally:
            link.close()
            process.communicate(timeout=10)


def ask(process: subprocess.Popen[str], question: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def receive(given: argparse.Namespace) -> int:
    """The other process: takes transfers into pages of its own until its standard input ends."""
    told = json.loads(sys.stdin.readline())
    key = PoolKey(told["key"])
    layout, name = layout_of(given.format), given.transports[0]
    me = hello("receiver", layout, name)
    listener = open_transport(name, key).listen(me, told["listen"])
    print(json.dumps({"address": listener.address}), flush=True)
    pages = np.zeros((-(-given.tokens // PAGE) + 1, layout.page_bytes(0)), np.uint8)
    arrivals = Arrivals(me.epoch, [layout.page_bytes(0)], lambda *_: True, limit=1)
    links: list[Link] = []
    while True:
        ready, _, _ = select.select([sys.stdin, listener, *links], [], [])
        links += listener.accept()
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                break
            if (tokens := json.loads(line).get("tokens")) is None:
                print(json.dumps({"cpu": time.process_time()}), flush=True)
            else:
                ticket = ticket_for(tokens, me, layout)
                arrivals.expect(ticket, time.monotonic())
                print(json.dumps({"ticket": ticket.seal(key).hex()}), flush=True)
        for link in links:
            take(link, arrivals, pages)
        links = [link for link in links if link.failure is None]
    for link in links:
        link.close()
    listener.close()
    return 0


def ticket_for(tokens: int, me: Hello, layout: PageLayout) -> Ticket:
    count = -(-tokens // PAGE)
    return Ticket(
        version=TICKET_VERSION,
        transfer=secrets.token_hex(8),
        epoch=me.epoch,
        model=MODEL,
        layout=layout_data(layout),
        tokens=tokens,
        token_digest=digest_of_tokens(np.arange(tokens)),
        groups=[TicketPages(0, list(range(1, count + 1)), [1] * count)],
        lease=SECONDS,
        addresses=[],
    )


def take(link: Link, arrivals: Arrivals, pages: Any) -> None:
    for arrival in link.receive():
        assert isinstance(arrival.message, Frame)
        outcome = arrivals.take(arrival.message, arrival.data, time.monotonic(), id(link))
        if isinstance(outcome, Import):
            first, _ = outcome.pages[0]
            np.copyto(pages[first : first + len(outcome.pages)], outcome.data)
        arrival.free()
        if isinstance(outcome, Admit | Refusal):
            link.send(outcome.answer)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"transfer: {error}")
