"""Changes bytes in this process's own memory, as a broken memory chip would: wherever a pattern stands."""

import re
from pathlib import Path

_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw\S* \S+ \S+ \S+\s*(.*)")


def flip_everywhere(pattern: bytes, at: int, mask: int) -> int:
    """Flips the bits of ``mask`` in byte ``at`` of every copy of ``pattern``; returns how many there were."""
    found = 0
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            region = _REGION.match(line)
            if region is None or (region[3].startswith("[") and region[3] != "[heap]"):  # the kernel's own
                continue
            start, end = int(region[1], 16), int(region[2], 16)
            memory.seek(start)
            data = memory.read(end - start)
            place = data.find(pattern)
            while place >= 0:
                memory.seek(start + place + at)
                memory.write(bytes([pattern[at] ^ mask]))
                found += 1
                place = data.find(pattern, place + len(pattern))
    return found
