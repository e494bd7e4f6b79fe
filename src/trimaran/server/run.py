"""``trimaran serve`` from start to end: engine process and tokenizer side by side, then HTTP, then an orderly stop.

Light to import: the engine process is started first, and what takes long here (``assembly.py``: HTTP stack, tokenizer)
is imported while it loads the model.
"""

import asyncio
import contextlib
import gc
import logging
import socket
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, Signals
from typing import TYPE_CHECKING, Any, TypeVar

from trimaran.base.messages import Started
from trimaran.server.address import bind, is_loopback, stop_signals, url
from trimaran.server.descriptors import room_for
from trimaran.server.keys import read_keys
from trimaran.server.launch import Launch
from trimaran.server.options import ServeOptions
from trimaran.server.tenants import TenantLimits, Tenants
from trimaran.server.tls import tls_context

if TYPE_CHECKING:
    from trimaran.server.assembly import EncoderText, Text

    AnyText = Text | EncoderText

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Model:
    """What is served: a checkpoint, the names that requests use for it (the canonical one first), by which Trimaran."""

    path: Path
    names: tuple[str, ...]
    version: str


async def run(options: ServeOptions, model: Model, launch: Launch) -> int:
    """Serves ``model`` until SIGTERM or SIGINT; returns the exit code.

    Raises a ``TrimaranError`` when the server cannot start.
    """
    with bind(options.host, options.port) as sock, stop_signals() as stops:
        return await serve_on(sock, options, model, launch, stops)


async def serve_on(
    sock: socket.socket, options: ServeOptions, model: Model, launch: Launch, stops: asyncio.Queue[Signals]
) -> int:
    """As ``run``, on a bound socket and until ``stops`` yields (``listen.py`` says what a second item does)."""
    begun = time.monotonic()
    limits = TenantLimits(options.max_requests_per_minute, options.max_tokens_per_minute, options.max_concurrency)
    keys = read_keys(options.api_key, options.api_key_file, limits)
    tenants = Tenants(keys, limits, own_caches=options.cache_salt_per_key)
    tls = tls_context(options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs)
    address = url(sock, "http" if tls is None else "https")
    if not is_loopback(sock) and not keys:
        log.warning("ANYBODY who reaches %s may use this server: set --api-key or listen on 127.0.0.1", address)
    loaded = await _unless_stopped(stops, _load(launch, model.path, options))
    if isinstance(loaded, Signals):
        log.info("stopped before it was ready")
        return 130 if loaded == SIGINT else 0  # for a shell, Ctrl-C before there was anything to stop is a failure
    started, text = loaded

    from trimaran.server.assembly import assemble
    from trimaran.server.listen import Listening, serve_until_stopped
    from trimaran.server.metrics import Metrics

    metrics = Metrics()
    link = launch.connect(options, metrics)
    async with contextlib.AsyncExitStack() as ends:
        ends.push_async_callback(link.stop, 0.0)
        stopped = await _unless_stopped(stops, launch.check(options, text.tokenizer))
        if isinstance(stopped, Signals):
            return 130 if stopped == SIGINT else 0
        app, plane, batches = assemble(options, tenants, model.names, model.version, link, metrics, started, text)
        ends.push_async_callback(batches.close)
        gc.freeze()  # no collection need look at all this again, which would take 10 ms in mid-stream
        gc.enable()
        seconds = time.monotonic() - begun
        launch.took(seconds)
        sock.listen()  # so that whoever reads the next line may connect at once
        print(_ready_line(model, address, seconds, started), file=sys.stderr, flush=True)
        how = Listening(
            keep_alive=options.timeout_keep_alive,
            grace=options.timeout_graceful_shutdown,
            head=options.timeout_body,
            connections=room_for(options.max_connections),
            tls=tls,
        )
        return await serve_until_stopped(app, sock, plane, link, stops, how)


async def _load(launch: Launch, path: Path, options: ServeOptions) -> "tuple[Started, AnyText]":
    loading = asyncio.create_task(asyncio.to_thread(_load_text, path, options))
    try:
        started = await launch.start()
    except BaseException:
        loading.cancel()
        raise
    try:
        text = await loading
        text.require(started)
        return started, text
    except BaseException:
        await launch.stop()
        raise


def _load_text(path: Path, options: ServeOptions) -> "AnyText":
    from trimaran.checkpoint.verify import Verification, text_files
    from trimaran.server.assembly import load_text

    files = text_files(path, Verification(options.verify), options.manifest_key)
    return load_text(path, None if options.chat_template is None else Path(options.chat_template), files)


async def _unless_stopped(stops: asyncio.Queue[Signals], work: Coroutine[Any, Any, T]) -> T | Signals:
    """The result of ``work``, or what ``stops`` yields when that is first; the work is cancelled then."""
    task, stop = asyncio.create_task(work), asyncio.create_task(stops.get())
    await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return stop.result()
    if stop.done():
        stops.put_nowait(stop.result())  # for whoever serves
    stop.cancel()
    return task.result()


def _ready_line(model: Model, address: str, seconds: float, started: Started) -> str:
    facts = (
        f"ready in {seconds:.1f} s",
        f"{started.executor} executor, {started.isa}, {started.threads} thread" + ("s" if started.threads != 1 else ""),
        f"weights {started.weight_format}, {started.weight_bytes / 1e6:.0f} MB",
        f"KV {started.kv_format}, {_pages(started)}" if started.pages else _read_whole(started),
        f"context {started.context}",
    )
    return f"Trimaran {model.version} serves {model.names[0]} on {address}/v1 ({'; '.join(facts)})"


def _read_whole(started: Started) -> str:
    return f"vectors of {started.embedding_width}" if started.score is None else "scores of pairs"


def _pages(started: Started) -> str:
    """Such as ``2048 pages of 16 and 4224 with a window of 512``."""
    parts: list[str] = []
    for pages in sorted(started.pages, key=lambda pages: pages.window or 0):
        size = "" if parts else f" pages of {started.page_size}"
        window = "" if pages.window is None else f" with a window of {pages.window}"
        parts.append(f"{pages.total}{size}{window}")
    return " and ".join(parts)
