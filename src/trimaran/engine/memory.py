"""How much memory an engine may take."""

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes that this process may still take without swapping: what the machine has left, or its control group."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for limit, usage in _CGROUPS:
        if (bound := _read(limit).strip()).isdigit():  # "max": no limit
            found.append(max(0, int(bound) - int(_read(usage))))
    return min(found)


_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
