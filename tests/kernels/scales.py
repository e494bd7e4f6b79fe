"""Scales for the static KV formats of any program, so that tests can run in every format."""

from dataclasses import replace

import numpy as np

from trimaran.base.formats import CacheGroup, HeadsCache, KVFormat
from trimaran.kernels.kv_scales import KVScales
from trimaran.kernels.program import Program
from trimaran.kernels.step import ExecutorOptions

LARGEST = {KVFormat.FP8_STATIC: 448, KVFormat.INT8_STATIC: 127}


def static_scales(program: Program, largest: float = 2.5) -> tuple[KVScales, ...]:
    """Ranges between ``largest`` and twice that, other ones for each layer, kv head and part."""
    return tuple(
        KVScales(fmt, tuple(_scales(group, largest / steps, seed) for seed, group in enumerate(program.groups)))
        for fmt, steps in LARGEST.items()
    )


def _scales(group: CacheGroup, least: float, seed: int) -> np.ndarray | None:
    cache = group.caches[0]
    if not isinstance(cache, HeadsCache):
        return None
    shape = (2, cache.layers, cache.kv_heads)
    return np.random.default_rng(seed).uniform(least, 2 * least, shape).astype(np.float32)


def in_format(options: ExecutorOptions, fmt: KVFormat, program: Program) -> ExecutorOptions:
    """``options`` with pages of ``fmt``, and the scales of all static formats."""
    return replace(options, kv_format=fmt, kv_scales=static_scales(program))
