"""What the machine can do at best, in numbers: what every share of the floor is a share of."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran import _probe
from trimaran.bench.machine import ForeignLoad, Machine
from trimaran.kernels.bounds import PASSES

FOOTPRINTS = tuple(1 << power for power in range(20, 31))  # 1 MiB to 1 GiB
STAGES = 200  # about what a step of a small model has
CPU = Path("/sys/devices/system/cpu/cpu0/cache")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True)
class Limits:
    """Bounds of one thread and of all; rates are the best of short passes, in bytes or operations a second."""

    machine: dict[str, str | int | float]
    threads: tuple[int, ...]  # 1, and as many as were asked for
    read: dict[int, tuple[float, ...]]  # by footprint in bytes, for each of ``threads``
    int8: tuple[float, ...]  # a multiply-add is two operations
    fp32: tuple[float, ...]
    job_seconds: float  # the team of all threads takes up a step and ends it
    stage_seconds: float  # it meets between two ops
    caches: dict[str, str]  # size by level, as the system tells it
    huge_pages: str
    foreign_cores: float | None

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values; lists are in the order of ``threads``."""
        return {
            "machine": self.machine,
            "threads": list(self.threads),
            "read_bytes_per_second": {str(size): list(rates) for size, rates in self.read.items()},
            "int8_ops_per_second": list(self.int8),
            "fp32_ops_per_second": list(self.fp32),
            "team_job_seconds": self.job_seconds,
            "team_stage_seconds": self.stage_seconds,
            "caches": self.caches,
            "transparent_huge_pages": self.huge_pages,
            "foreign_cores": self.foreign_cores,
        }

    def to_text(self) -> str:
        """Tables for people."""
        machine = self.machine
        foreign = "unknown" if self.foreign_cores is None else f"{self.foreign_cores:.2f} cores"
        caches = ", ".join(f"{level} {size}" for level, size in self.caches.items()) or "unknown"
        titles = "".join(f"{f'{count} thread' + 's' * (count > 1):>12}" for count in self.threads)
        lines = [
            f"{machine['cpu']}, {machine['isa']}, {machine['system']}",
            f"caches {caches}; transparent huge pages: {self.huge_pages}; other processes used {foreign}",
            "",
            f"{'read, GB/s':16}{titles}",
        ]
        lines += [_row(_size(size), rates, 1e9) for size, rates in self.read.items()]
        lines += ["", f"{'TOP/s':16}{titles}", _row("int8", self.int8, 1e12), _row("fp32", self.fp32, 1e12), ""]
        lines.append(
            f"team of {self.threads[-1]}: {self.job_seconds * 1e6:.2f} us a step, "
            f"{self.stage_seconds * 1e6:.2f} us more for each op"
        )
        return "\n".join(lines)


def measure(threads: int, progress: Callable[[str], None] = lambda _: None) -> Limits:
    """Measures for about ten seconds. ``progress`` is told what comes."""
    counts = (1, threads) if threads > 1 else (1,)
    machines = [Machine(count) for count in counts]
    with ForeignLoad() as foreign:
        read = {}
        for size in FOOTPRINTS:
            progress(f"reading {_size(size)}")
            read[size] = tuple(machine.bandwidth(size) for machine in machines)
        progress("multiplying")
        int8 = tuple(machine.peak(int8=True) for machine in machines)
        fp32 = tuple(machine.peak(int8=False) for machine in machines)
        progress("meeting")
        job, long_job = (min(_probe.team_seconds(threads, stages, PASSES)) for stages in (1, 1 + STAGES))
    return Limits(
        machine=machines[-1].describe(),
        threads=counts,
        read=read,
        int8=int8,
        fp32=fp32,
        job_seconds=job,
        stage_seconds=(long_job - job) / STAGES,
        caches=caches(),
        huge_pages=huge_pages(),
        foreign_cores=foreign.cores if foreign.known else None,
    )


def caches() -> dict[str, str]:
    """Sizes of the first core's caches, such as ``{"L1d": "48K", "L2": "1024K"}``; empty where Linux does not say."""
    found = {}
    for folder in sorted(CPU.glob("index*")):
        try:
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        found[f"L{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")] = size
    return found


def huge_pages() -> str:
    """When the system backs memory with huge pages: always, madvise (which we ask for), never, or unknown."""
    try:
        text = HUGE_PAGES.read_text()
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0] or "unknown"


def _row(title: str, rates: tuple[float, ...], unit: float) -> str:
    digits = 1 if unit < 1e12 else 3
    return f"{title:16}" + "".join(f"{rate / unit:12.{digits}f}" for rate in rates)


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size < 1 << 30 else f"{size >> 30} GiB"
