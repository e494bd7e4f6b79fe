"""How long a server takes from the file to its first answer, and how much memory its engine needs.

    python bench/startup.py smollm2 --peer openvino

Each round starts `trimaran serve` twice, from the model's files (a first start) and from weights that were packed
before, waits until it is ready and has it answer 32 requests of 128 tokens in and 128 out at once. Memory is what both
processes hold when they are ready, and the most that each ever had resident. A peer is loaded in a process of its own,
without server.
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import TrimaranError
from trimaran.bench.cases import EndToEnd
from trimaran.bench.machine import usable_cores
from trimaran.bench.over_http import OwnServer
from trimaran.bench.peer_process import PeerOptions, PeerProcess
from trimaran.bench.peers import openvino
from trimaran.bench.processes import peak_resident_bytes, resident_bytes
from trimaran.checkpoint.sources import resolve

CASE = EndToEnd(32, 128, 128)
VOCAB = 30_000
WAYS = {"first start": ["--packed-cache-bytes", "0"], "later start": []}  # and the flags of each


@dataclass(frozen=True)
class Start:
    """One start: seconds until it was ready, bytes of all processes then, and peak bytes of the engine and, where there
    is one, of its server."""

    seconds: float
    ready: int
    engine: int
    server: int


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each")
    parser.add_argument("--peer", choices=["openvino"])
    parser.add_argument("--peers-dir", type=Path, default=Path(".peers/bin"))
    options = parser.parse_args(arguments)
    threads = options.threads or usable_cores()
    model = str(resolve(options.model).path)
    starts: dict[str, list[Start]] = {}
    start_ours(model, [], VOCAB)  # packs the weights for later starts
    for _ in range(options.rounds):
        for way, flags in WAYS.items():
            starts.setdefault(way, []).append(start_ours(model, ["--threads", str(threads), *flags], VOCAB))
        if options.peer:
            starts.setdefault("openvino", []).append(start_openvino(model, threads, options.peers_dir))
    print(f"{CASE.sequences} requests of {CASE.prompt} + {CASE.output} tokens, {threads} threads")
    print(f"{'':16}{'ready, s':>10}{'(min - max)':>16}{'at first, MB':>14}{'engine, MB':>12}{'server, MB':>12}")
    for name, seen in starts.items():
        print(row(name, seen))
    return 0


def start_ours(model: str, flags: list[str], vocab: int) -> Start:
    """Starts a server, measures it under load and stops it."""
    began = time.perf_counter()
    server = OwnServer(model, ["--max-num-seqs", str(CASE.sequences), *flags], vocab)
    seconds = time.perf_counter() - began
    ready = resident_bytes(server.pid) or 0
    peaks = peaks_under_load(server)
    return Start(seconds, ready, engine=sum(peaks[1:]), server=sum(peaks[:1]))


def start_openvino(model: str, threads: int, folder: Path) -> Start:
    """Loads OpenVINO, which has no server in this package, and measures it under the same load."""
    tokens = CASE.prompt + CASE.output
    options = PeerOptions(model, threads, VOCAB, context=tokens, sequences=CASE.sequences, cache_gb=1)
    began = time.perf_counter()
    peer = openvino(options, folder)
    seconds = time.perf_counter() - began
    ready = resident_bytes(peer.pid) or 0
    return Start(seconds, ready, engine=sum(peaks_under_load(peer)), server=0)


def peaks_under_load(subject: OwnServer | PeerProcess) -> list[int]:
    """The peak bytes of the subject's processes after the load, its own first; ends the subject."""
    try:
        subject.measure(CASE)
        return peak_resident_bytes(subject.pid)
    finally:
        subject.close()


def row(name: str, starts: list[Start]) -> str:
    """Medians; a peak is the highest of all rounds."""
    seconds = [start.seconds for start in starts]
    spread = f"({min(seconds):.2f} - {max(seconds):.2f})"
    ready = statistics.median(start.ready for start in starts)
    peaks = [max(start.engine for start in starts), max(start.server for start in starts)]
    cells = "".join(f"{size / 1e6:12,.0f}" if size else f"{'-':>12}" for size in peaks)
    return f"{name:16}{statistics.median(seconds):10.2f}{spread:>16}{ready / 1e6:14,.0f}{cells}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"startup: {error}")
