"""What the processor is called."""

import platform
from pathlib import Path


def cpu_name() -> str:
    """The processor's name, with family and model where Linux tells them (cloud machines share names)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = facts.get("model name", platform.machine())
    return f"{name} (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else name
