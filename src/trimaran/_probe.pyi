"""Measures what this machine can do at best (csrc/probe.cpp)."""

def read_seconds(footprint: int, threads: int, passes: int) -> list[float]:
    """Seconds of each pass that reads ``footprint`` bytes, split over ``threads``."""

def multiply_rate(int8: bool, threads: int, passes: int) -> list[float]:
    """Operations a second of each pass (a multiply-add is two): int8 dot products, or float32 FMA."""

def team_seconds(threads: int, stages: int, passes: int) -> list[float]:
    """Seconds of a job of the executor's thread team in each pass, of ``stages`` stages in which all meet."""

def isa() -> str:
    """The instructions that were used: avx512vnni, avx2 or generic."""
