"""``trimaran worker``: an engine that prefills or decodes for servers on other hosts."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli import flags
from trimaran.cli.flags import Pages, Weights


def worker(
    model: flags.Model,
    role: Annotated[str, typer.Option(metavar="prefill|decode", help="What it does of requests.", show_default=False)],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where servers connect.", show_default=False)],
    pages: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where a decode worker takes pages; default: the same host, any port.",
            show_default=False,
        ),
    ] = None,
    pool_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The deployment's key; default: TRIMARAN_POOL_KEY.", show_default=False),
    ] = None,
    weight_format: flags.WeightFormat = Weights.AUTO,
    kv_cache_dtype: flags.KVCacheDtype = Pages.AUTO,
    kv_cache_scales: flags.KVCacheScales = None,
    kv_cache_memory_bytes: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="Memory for the KV cache.", show_default=False)
    ] = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most sequences in one step.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Most tokens in one step.")] = 512,
    executor: flags.Executor = "native",
    threads: flags.Threads = 0,
    canary_interval: Annotated[float, typer.Option(min=0, help="As for `trimaran serve`.")] = 60.0,
    offline: flags.Offline = False,
) -> None:
    """Run one worker of a pool for `trimaran serve --pools` on another host.

    Nothing is loaded until a server connects; its engine ends when the server leaves. Both sides prove that they have
    the same key. Serve the same model with the same page size on all hosts.

    \b
    Examples:
      trimaran worker smollm2 --role decode --listen 10.0.0.2:7000 --kv-cache-dtype fp8 --pool-key-file pool.key
      trimaran serve smollm2 --pools prefill=1,decode=10.0.0.2:7000 --pool-key-file pool.key
    """
    import logging
    import os
    import signal
    from dataclasses import replace

    from trimaran.base.errors import ConfigError
    from trimaran.base.messages import Role
    from trimaran.checkpoint.sources import resolve
    from trimaran.cli.serve import engine_config
    from trimaran.engine.config import PoolConfig
    from trimaran.pools.key import KEY_VARIABLE, PoolKey, read_key_text
    from trimaran.pools.remote_worker import RemoteWorker
    from trimaran.pools.tcp import join_address, split_address
    from trimaran.server.options import ServeOptions

    if role not in ("prefill", "decode"):
        raise ConfigError(f"--role is prefill or decode, not {role!r}")
    if pool_key_file is None and not os.environ.get(KEY_VARIABLE):
        raise ConfigError(f"a worker needs the deployment's key: give it with --pool-key-file or {KEY_VARIABLE}")
    key = read_key_text(pool_key_file)
    host, _ = split_address(listen)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    name = f"{role} worker at {listen}"
    options = ServeOptions(
        model=model,
        executor=executor,
        weight_format=weight_format.value,
        kv_cache_dtype=kv_cache_dtype.value,
        kv_cache_scales=kv_cache_scales,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        threads=threads,
        canary_interval=canary_interval,
    )
    found = resolve(model, offline=offline)
    pool = PoolConfig(name=name, key=key, transports=("tcp",), listen={"tcp": pages or join_address(host, 0)})
    kind: Role = "prefill" if role == "prefill" else "decode"
    config = replace(engine_config(options, found.path, found.name), role=kind, pool=pool)
    remote = RemoteWorker(config.to_json(), PoolKey(key), name, listen)

    def stop(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    logging.getLogger(__name__).info("a %s worker of %s waits for servers at %s", role, model, remote.address)
    try:
        remote.serve()
    finally:
        remote.close()
