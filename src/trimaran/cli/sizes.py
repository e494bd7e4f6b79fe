"""Sizes as users write them, with a unit."""

from trimaran.base.errors import ConfigError


def parse_size(text: str) -> int:
    """Bytes that ``61GB``, ``36KB``, ``139.8GiB`` or ``1024`` stand for; raises ``ConfigError``."""
    units = {
        "kib": 2**10,
        "mib": 2**20,
        "gib": 2**30,
        "tib": 2**40,
        "kb": 1e3,
        "mb": 1e6,
        "gb": 1e9,
        "tb": 1e12,
        "b": 1,
    }
    lowered = text.strip().lower()
    unit = next((unit for unit in units if lowered.endswith(unit)), "")
    try:
        size = float(lowered.removesuffix(unit)) * units.get(unit, 1)
    except ValueError:
        size = -1.0
    if not 0 <= size < 2**60:
        raise ConfigError(f"{text!r} is not a size: write 61GB, 139.8GiB or a number of bytes")
    return int(size)
