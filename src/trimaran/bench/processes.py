"""What a process and all its descendants take: memory and CPU time, as Linux tells them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int | None:
    """Resident bytes of the whole tree; None where there is no ``/proc``."""
    return sum(_each("VmRSS", pid)) if PROC.exists() else None


def peak_resident_bytes(pid: int) -> list[int]:
    """The most that each process of the tree ever had resident, ``pid`` first; empty where there is no ``/proc``."""
    return _each("VmHWM", pid)


def cpu_seconds(pid: int) -> float:
    """User and system time of the whole tree, of descendants that have ended too; 0 where there is no ``/proc``."""
    ticks = 0
    for folder in tree(pid):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / TICKS


def tree(pid: int) -> Iterator[Path]:
    """The folder in ``/proc`` of a process and of each of its descendants; one that ends meanwhile may be left out."""
    open_pids = [pid]
    while open_pids:
        folder = PROC / str(open_pids.pop())
        try:
            tasks = list((folder / "task").iterdir())
            open_pids += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            continue
        yield folder


def _each(field: str, pid: int) -> list[int]:
    sizes = []
    for folder in tree(pid):
        try:
            status = (folder / "status").read_text()
        except OSError:
            continue
        if found := re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE):
            sizes.append(1024 * int(found[1]))
    return sizes
