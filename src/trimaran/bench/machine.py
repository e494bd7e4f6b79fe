"""The machine under test: what it can do at best, measured now, and who else is using it."""

import os
import platform
import time
from pathlib import Path
from types import TracebackType

from trimaran import _probe
from trimaran.base.processor import cpu_name
from trimaran.bench.processes import TICKS, cpu_seconds
from trimaran.kernels.bounds import Bounds


class Machine(Bounds):
    """The machine's bounds, and what it is called."""

    def describe(self) -> dict[str, str | int | float]:
        """For the head of a report."""
        return {
            "cpu": cpu_name(),
            "threads": self.threads,
            "isa": _probe.isa(),
            "int8_tops": round(self.peak(int8=True) / 1e12, 3),
            "fp32_tflops": round(self.peak(int8=False) / 1e12, 3),
            "read_gb_s_96_mib": round(self.bandwidth(96 << 20) / 1e9, 1),
            "system": f"{platform.system()} {platform.release()}",
        }


class ForeignLoad:
    """How many cores other processes used inside the ``with``: busy time of the machine less that of this process
    and its descendants.

    Zero on systems without ``/proc/stat``; ``known`` says so.
    """

    def __enter__(self) -> "ForeignLoad":
        self._start = (time.monotonic(), _busy(), _own())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        wall, busy, own = (
            now - then for now, then in zip((time.monotonic(), _busy(), _own()), self._start, strict=True)
        )
        self.cores = max(0.0, (busy - own) / wall)

    @property
    def known(self) -> bool:
        return Path("/proc/stat").exists()


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _busy() -> float:
    """CPU seconds since boot that were neither idle nor waiting for a disk, over all cores; stolen time counts."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / TICKS


def _own() -> float:
    """CPU seconds of this process and of all its descendants."""
    return cpu_seconds(os.getpid())
