"""The worker processes that ``trimaran serve --pools`` starts: their number, cores, threads and precisions."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.base.messages import Role
from trimaran.pools.key import read_key_text

if TYPE_CHECKING:
    from trimaran.engine.config import EngineConfig
    from trimaran.server.options import ServeOptions

MOST_WORKERS = 64  # of a pool
_COUNTS = re.compile(r"(prefill|decode)=(\d{1,3})")


def pool_counts(text: str) -> tuple[int, int] | None:
    """How many workers prefill and decode; None for ``none``. Raises ``ConfigError`` naming ``--pools``."""
    if text.strip() == "none":
        return None
    found = [_COUNTS.fullmatch(part.strip()) for part in text.split(",")]
    counts = {match[1]: int(match[2]) for match in found if match}
    if not all(found) or len(found) != 2 or len(counts) != 2 or not all(0 < n <= MOST_WORKERS for n in counts.values()):
        raise ConfigError(f"--pools is none or such as prefill=1,decode=1, with 1 to {MOST_WORKERS} each, not {text!r}")
    return counts["prefill"], counts["decode"]


def require_no_pools(options: "ServeOptions") -> None:
    """Raises ``ConfigError`` for flags of pools without ``--pools``."""
    of_pools = ("prefill_weights", "prefill_kv", "prefill_threads", "decode_weights", "decode_kv", "decode_threads")
    for name in (*of_pools, "pool_key_file"):
        if getattr(options, name):
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is of no use without pools: add --pools prefill=1,decode=1")


def worker_configs(
    options: "ServeOptions", base: "EngineConfig", counts: tuple[int, int]
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The configurations of the workers that prefill and of those that decode, from that of a single engine."""
    key = read_key_text(None if options.pool_key_file is None else Path(options.pool_key_file))
    decode_kv = _pages(options.decode_kv, base.kv_format)
    share = _share(counts)
    pools: list[list[Mapping[str, Any]]] = []
    roles: tuple[tuple[Role, int], ...] = (("prefill", counts[0]), ("decode", counts[1]))
    for role, count in roles:
        weights = options.prefill_weights if role == "prefill" else options.decode_weights
        threads = options.prefill_threads if role == "prefill" else options.decode_threads
        config = replace(
            base,
            role=role,
            weight_format=_weights(weights, base.weight_format),
            kv_format=_pages(options.prefill_kv, base.kv_format) if role == "prefill" else decode_kv,
            export_format=decode_kv if role == "prefill" and decode_kv is not None and decode_kv.static else None,
            threads=threads or base.threads or share,
        )
        pools.append([_named(config, role, number, key, options.pool_transport) for number in range(count)])
    return pools[0], pools[1]


def _named(config: "EngineConfig", role: Role, number: int, key: str, transport: str) -> Mapping[str, Any]:
    from trimaran.engine.config import PoolConfig

    pool = PoolConfig(name=f"{role} worker {number}", key=key, transports=(transport,))
    return replace(config, pool=pool).to_json()


def _share(counts: tuple[int, int]) -> int:
    """Threads of a worker when nobody says: the cores shared out evenly, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // sum(counts))


def _weights(text: str | None, default: WeightFormat | None) -> WeightFormat | None:
    from trimaran.cli.serve import spelled

    if text is None:
        return default
    name = spelled(text)
    return None if name is None else WeightFormat(name)


def _pages(text: str | None, default: KVFormat | None) -> KVFormat | None:
    from trimaran.cli.serve import spelled

    if text is None:
        return default
    name = spelled(text)
    return None if name is None else KVFormat(name)
