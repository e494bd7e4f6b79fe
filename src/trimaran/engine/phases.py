"""What the time of a start went to."""

import os
import time
from pathlib import Path


class Phases:
    """Seconds by name, in order; ``lap`` gives a phase the time since the last one ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    @classmethod
    def of_process(cls) -> "Phases":
        """Of a process that has done nothing else so far: the first phase is ``interpreter``, from its birth to now."""
        phases = cls()
        phases.seconds["interpreter"] = _age()
        return phases

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


def _age() -> float:
    """Seconds since this process was started, to a hundredth; 0 where there is no ``/proc``."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
