"""The scales of KV formats that have none in their pages."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import ConfigError
from trimaran.base.formats import CacheGroup, HeadsCache, KVFormat

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class KVScales:
    """Scales of a static format: a number of a page is multiplied with that of its layer, kv head and part.

    ``groups``: for each cache group with heads ``[2, layers, kv_heads]``, of keys and of values; layers that are held
    as ``KVFormat.wider`` have some too, which nothing reads. Raises ``ConfigError`` unless all are positive numbers.
    """

    fmt: KVFormat
    groups: tuple[Float32 | None, ...]

    def __post_init__(self) -> None:
        assert self.fmt.static, self.fmt
        for number, scales in enumerate(self.groups):
            if scales is not None and not (np.isfinite(scales) & (scales > 0)).all():
                raise ConfigError(f"scales of {self.fmt} pages, cache group {number}: one is not a positive number")

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the format and all scales."""
        sha = hashlib.sha256(self.fmt.value.encode())
        for scales in self.groups:
            sha.update(b"none" if scales is None else str(scales.shape).encode() + scales.tobytes())
        return sha.hexdigest()


def scales_of(scales: Sequence[KVScales], fmt: KVFormat, group: int) -> Float32 | None:
    """Those of cache group number ``group``, where ``fmt`` is static; raises ``ConfigError`` when there are none."""
    if not fmt.static:
        return None
    for each in scales:
        if each.fmt is fmt:
            return each.groups[group]
    raise ConfigError(
        f"{fmt} pages have no scales of their own and none were given: `trimaran calibrate MODEL` measures them"
    )


def check_scales(scales: Sequence[KVScales], fmt: KVFormat, groups: Sequence[CacheGroup]) -> None:
    """Raises ``ConfigError`` when pages of ``fmt`` need scales that are missing, or that fit another model."""
    for number, group in enumerate(groups):
        for cache in group.caches:
            if not isinstance(cache, HeadsCache) or not fmt.static:
                continue
            given, shape = scales_of(scales, fmt, number), (2, cache.layers, cache.kv_heads)
            if given is None or given.shape != shape or given.dtype != np.float32:
                found = None if given is None else list(given.shape)
                raise ConfigError(
                    f"scales of {fmt} pages, cache group {number}, are {found}, not float32 {list(shape)}: "
                    "they are of another model"
                )
