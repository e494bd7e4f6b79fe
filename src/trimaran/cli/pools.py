"""The engines that ``trimaran serve`` starts: one, or those of pools; their number, cores, threads and precisions."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.pools.key import KEY_VARIABLE, read_key_text

if TYPE_CHECKING:
    from trimaran.engine.config import EngineConfig
    from trimaran.server.launch_pools import WorkerCommand
    from trimaran.server.options import ServeOptions

MOST_WORKERS = 64  # of a pool
_POOL = re.compile(r"(prefill|decode)=([^,]+)")
_AS = "--pools is none or such as prefill=1,decode=2 or prefill=1,decode=10.0.0.2:7000+10.0.0.3:7000"

Members = list[str | None]  # of a pool: the address of a worker on another host, or None for one that is started here


def pool_members(text: str) -> tuple[Members, Members] | None:
    """Who prefills and who decodes; None for ``none``. Raises ``ConfigError`` naming ``--pools``."""
    if text.strip() == "none":
        return None
    found = [_POOL.fullmatch(part.strip()) for part in text.split(",")]
    pools = {match[1]: _members(match[2]) for match in found if match}
    if not all(found) or len(found) != 2 or len(pools) != 2:
        raise ConfigError(f"{_AS}, not {text!r}")
    return pools["prefill"], pools["decode"]


def _members(text: str) -> Members:
    if not text.isdecimal():
        from trimaran.pools.tcp import split_address  # imported here and below: others start without

        addresses = text.split("+")
        for address in addresses:
            split_address(address)
        return list(addresses)
    if not 0 < int(text) <= MOST_WORKERS:
        raise ConfigError(f"{_AS}, with 1 to {MOST_WORKERS} workers each, not {text}")
    return [None] * int(text)


def one_engine(options: "ServeOptions", base: "EngineConfig") -> "EngineConfig":
    """The engine of a server without pools: it may prefill and decode with weights of different formats, though not
    with different pages. Raises ``ConfigError`` naming flags."""
    for name in ("prefill_kv", "prefill_threads", "decode_kv", "decode_threads", "pool_key_file", "pool_listen"):
        if getattr(options, name):
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is of no use without pools: add --pools prefill=1,decode=1")
    if options.prefill_weights is None and options.decode_weights is None:
        return base
    prefill, decode = (_weights(text, base.weight_format) for text in (options.prefill_weights, options.decode_weights))
    if options.executor == "null":
        raise ConfigError("--prefill-weights and --decode-weights are of no use to the null executor, without weights")
    if prefill == decode:
        name = decode or "auto"
        raise ConfigError(f"prefill and decode weights are both {name}: say that with --weight-format {name} alone")
    return replace(base, weight_format=decode, prefill_weight_format=prefill or "auto")


def pool_workers(
    options: "ServeOptions", base: "EngineConfig", prefill: Members, decode: Members
) -> "tuple[list[WorkerCommand], list[WorkerCommand]]":
    """The workers that prefill and those that decode; what is started here has the configuration of a single engine,
    but for its precisions and its share of the cores. Raises ``ConfigError``."""
    file = None if options.pool_key_file is None else Path(options.pool_key_file)
    away = any(address is not None for address in prefill + decode)
    if away and file is None and not os.environ.get(KEY_VARIABLE):
        raise ConfigError(f"workers on other hosts have a key: give it with --pool-key-file or {KEY_VARIABLE}")
    key = read_key_text(file)
    transport = "tcp" if away else options.pool_transport
    share = _share(sum(address is None for address in prefill + decode))
    decode_kv = _pages(options.decode_kv, base.kv_format)
    export = decode_kv if decode_kv is not None and decode_kv.static else None
    giving = replace(
        base,
        role="prefill",
        weight_format=_weights(options.prefill_weights, base.weight_format),
        kv_format=_pages(options.prefill_kv, base.kv_format),
        export_format=export,
        threads=options.prefill_threads or base.threads or share,
    )
    taking = replace(
        base,
        role="decode",
        weight_format=_weights(options.decode_weights, base.weight_format),
        kv_format=decode_kv,
        threads=options.decode_threads or base.threads or share,
    )
    from trimaran.pools.tcp import join_address

    cores = sorted(os.sched_getaffinity(0)) if base.pin_threads else []
    listen = {} if options.pool_listen is None else {"tcp": join_address(options.pool_listen, 0)}

    def commands(config: "EngineConfig", members: Members) -> "list[WorkerCommand]":
        from trimaran.engine.config import PoolConfig
        from trimaran.server.launch_pools import RELAY, WorkerCommand

        found = []
        for number, address in enumerate(members):
            name = f"{config.role} worker {number}"
            if address is None:
                pool = PoolConfig(name=name, key=key, transports=(transport,), listen=listen)
                mine, cores[:] = (
                    tuple(cores[: config.threads]),
                    cores[config.threads :],
                )  # empty: wherever there is room
                found.append(WorkerCommand(replace(config, pool=pool, cores=mine).to_json()))
            else:
                found.append(WorkerCommand({"address": address, "key": key, "name": name}, RELAY))
        return found

    return commands(giving, prefill), commands(taking, decode)


def _share(workers: int) -> int:
    """Threads of each of so many workers when nobody says: the cores shared out evenly, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, workers))


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
