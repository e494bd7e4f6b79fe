"""What a start of ``trimaran serve`` takes, from the command to the line that says it is ready, and what of."""

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimaran.base.errors import EngineDiedError
from trimaran.bench.machine import ForeignLoad, usable_cores
from trimaran.bench.served import READY, START_SECONDS, STOP_SECONDS

PACK_SECONDS = 60.0  # to wait for packed weights, which are written once a server is ready
_PHASE = re.compile(r'^trimaran_start_seconds\{phase="([^"]+)"\} (\S+)$', re.MULTILINE)
_KEEP, _PACKED, _FILES = 1 << 40, "packed", "files"  # bytes of packs; where weights come from
OTHER = "server, waiting"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Start:
    """Seconds to ``ready``, those of the engine's phases, and until the last download was done (0: there was none)."""

    ready: float
    phases: dict[str, float]
    download: float = 0.0

    def all_phases(self) -> dict[str, float]:
        """The engine's, and the rest: command line, the server's own parts, waiting for one another."""
        return {**self.phases, OTHER: self.ready - sum(self.phases.values())}


@dataclass(frozen=True)
class Variant:
    """A way to start: from ``source``, with or without verification."""

    source: str
    verified: bool

    @property
    def name(self) -> str:
        return f"{self.source}, {'verified' if self.verified else 'unverified'}"

    @property
    def flags(self) -> list[str]:
        size = _KEEP if self.source == _PACKED else 0
        return ["--packed-cache-bytes", str(size), "--verify", "auto" if self.verified else "never"]


VARIANTS = tuple(Variant(source, verified) for source in (_FILES, _PACKED) for verified in (False, True))


@dataclass
class Report:
    """Starts by variant."""

    model: str
    rounds: int
    threads: int
    foreign_cores: float | None = None
    starts: dict[Variant, list[Start]] = field(default_factory=dict)

    def ready(self, variant: Variant) -> float:
        return statistics.median(start.ready for start in self.starts[variant])

    def phases(self, variant: Variant) -> dict[str, float]:
        """Medians by phase, in order."""
        starts = [start.all_phases() for start in self.starts[variant]]
        return {name: statistics.median(start.get(name, 0.0) for start in starts) for name in starts[0]}

    def cost(self, source: str) -> float:
        """Of verification: how many times as long a start takes."""
        return self.ready(Variant(source, verified=True)) / self.ready(Variant(source, verified=False))

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "rounds": self.rounds,
            "threads": self.threads,
            "other_processes_cores": self.foreign_cores,
            "starts": [
                {"source": v.source, "verified": v.verified, "ready": self.ready(v), "phases": self.phases(v)}
                for v in self.starts
            ],
            "verification_costs": {source: self.cost(source) for source in (_FILES, _PACKED)},
        }

    def to_text(self) -> str:
        foreign = "?" if self.foreign_cores is None else f"{self.foreign_cores:.2f} cores"
        columns = {variant: self.phases(variant) for variant in self.starts}
        names = list(dict.fromkeys(name for phases in columns.values() for name in phases))
        names.append(names.pop(names.index(OTHER)))
        lines = [
            f"{self.model}: milliseconds of a start, and their share; medians of {self.rounds} rounds, "
            f"{self.threads} threads, file cache warm; other processes used {foreign}",
            f"{'':16}" + "".join(f"{variant.name:>22}" for variant in columns),
        ]
        for name in names:
            cells = (_cell(phases.get(name), self.ready(variant)) for variant, phases in columns.items())
            lines.append(f"{name:16}" + "".join(cells))
        lines.append(f"{'ready':16}" + "".join(f"{1000 * self.ready(variant):22.0f}" for variant in columns))
        spread = (_spread(starts) for starts in self.starts.values())
        lines.append(f"{'':16}" + "".join(f"{text:>22}" for text in spread))
        lines.append(
            f"verification: {self.cost(_FILES):.2f} times the time without, from packed weights "
            f"{self.cost(_PACKED):.2f}; hash is what was waited for, beside the other phases it costs no time"
        )
        return "\n".join(lines)


def run_coldstart(model: Path, rounds: int, threads: int, say: Say) -> Report:
    """Starts a server in every way, in turn; packs and the like go to a folder of the run's own."""
    report = Report(model.name, rounds, threads or usable_cores())
    with ForeignLoad() as load, _home() as home:
        environ = {"TRIMARAN_HOME": str(home)}
        flags = ["--threads", str(threads)]
        say("packing")
        start_server(str(model), [*Variant(_PACKED, verified=True).flags, *flags], environ, wait_for=home / "packs")
        if not list((home / "packs").glob("*/pack.json")):  # without a manifest, and a file that is still new
            start_server(str(model), [*Variant(_PACKED, verified=True).flags, *flags], environ, wait_for=home / "packs")
        for number in range(rounds):
            for variant in VARIANTS:
                say(f"round {number + 1}/{rounds}: {variant.name}")
                start = start_server(str(model), [*variant.flags, *flags], environ)
                report.starts.setdefault(variant, []).append(start)
    report.foreign_cores = load.cores if load.known else None
    return report


def start_server(
    model: str, flags: Sequence[str], environ: Mapping[str, str], *, wait_for: Path | None = None
) -> Start:
    """One start of ``trimaran serve``; it is stopped again, after a pack has come to the folder ``wait_for``.

    Raises ``EngineDiedError`` with its last words when it does not start.
    """
    command = [sys.executable, "-c", "from trimaran.cli import main; main()", "serve", model, "--port", "0", *flags]
    log: list[str] = []
    began = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, **environ})
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        assert process.stderr is not None
        download = 0.0
        for line in process.stderr:
            log.append(line.decode(errors="replace"))
            if log[-1].startswith("Downloaded "):
                download = time.perf_counter() - began
            if found := READY.search(log[-1]):
                ready = time.perf_counter() - began
                break
        else:
            raise EngineDiedError("the server did not start:\n" + "".join(log[-20:]))
        with urllib.request.urlopen(f"{found[2]}/metrics", timeout=10) as answer:
            phases = {name: float(value) for name, value in _PHASE.findall(answer.read().decode())}
        phases.pop("ready")  # the server's own clock begins later
        until = time.monotonic() + PACK_SECONDS
        while wait_for is not None and not list(wait_for.glob("*/pack.json")) and time.monotonic() < until:
            time.sleep(0.05)
        return Start(ready, phases, download)
    finally:
        watchdog.cancel()
        _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    assert process.stderr is not None
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=STOP_SECONDS)  # reads what it still says: a full pipe would hold it up
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@contextmanager
def _home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="coldstart-") as folder:
        yield Path(folder)


def _cell(seconds: float | None, ready: float) -> str:
    return f"{'-':>22}" if seconds is None else f"{1000 * seconds:14.0f} {100 * seconds / ready:5.1f} %"


def _spread(starts: Sequence[Start]) -> str:
    seconds = sorted(start.ready for start in starts)
    return f"({1000 * seconds[0]:.0f} - {1000 * seconds[-1]:.0f})"
