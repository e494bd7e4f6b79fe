"""``trimaran serve`` from start to end: engine process and tokenizer side by side, then HTTP, then an orderly stop."""

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran import __version__
from trimaran.base.messages import Started
from trimaran.host.process import EngineProcess
from trimaran.server.engine import EngineLink
from trimaran.server.listen import bind, is_loopback, serve_until_stopped, stop_signals, url
from trimaran.server.metrics import Metrics
from trimaran.server.options import ServeOptions

if TYPE_CHECKING:
    from trimaran.server.app import Service
    from trimaran.text.template import ChatTemplate
    from trimaran.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Model:
    """What is served: a checkpoint and the names that requests use for it, the canonical one first."""

    path: Path
    names: tuple[str, ...]


async def run(options: ServeOptions, model: Model, engine: Mapping[str, Any]) -> int:
    """Serves ``model`` until SIGTERM or SIGINT; returns the exit code.

    ``engine`` is the engine process's configuration. Raises a ``TrimaranError`` when the server cannot start.
    """
    with bind(options.host, options.port) as sock, stop_signals() as stops:
        return await serve_on(sock, options, model, engine, stops)


async def serve_on(
    sock: socket.socket, options: ServeOptions, model: Model, engine: Mapping[str, Any], stops: asyncio.Queue[None]
) -> int:
    """As ``run``, on a bound socket and until ``stops`` yields (``listen.py`` says what a second item does)."""
    begun = time.monotonic()
    if not is_loopback(sock) and not options.api_key:
        log.warning("ANYBODY who reaches %s may use this server: set --api-key or listen on 127.0.0.1", url(sock))
    metrics = Metrics()
    link = EngineLink(lambda: EngineProcess(engine), metrics)
    # The engine process loads the model while this one loads the tokenizer and the HTTP stack.
    loading = asyncio.create_task(asyncio.to_thread(_load_text, model.path))
    try:
        started = await link.start()
        service = _service(options, model.names, link, started, await loading, metrics)
        app = _app(service, options)
        line = _ready_line(model.names[0], url(sock), time.monotonic() - begun, started)
        print(line, file=sys.stderr, flush=True)
        return await serve_until_stopped(
            app,
            sock,
            service.plane,
            link,
            stops,
            keep_alive=options.timeout_keep_alive,
            grace=options.timeout_graceful_shutdown,
            head=options.timeout_body,
        )
    finally:
        await asyncio.gather(loading, return_exceptions=True)
        await link.stop(0.0)


def _load_text(path: Path) -> "tuple[Tokenizer, ChatTemplate]":
    import trimaran.server.app  # noqa: F401  # its import takes longest, and happens while the engine loads
    from trimaran.checkpoint import open_checkpoint
    from trimaran.text.template import open_template
    from trimaran.text.tokenizer import open_tokenizer

    checkpoint = open_checkpoint(path)
    try:
        tokenizer = open_tokenizer(checkpoint)
        return tokenizer, open_template(checkpoint, tokenizer)
    finally:
        checkpoint.release()
        checkpoint.close()


def _service(
    options: ServeOptions,
    names: tuple[str, ...],
    link: EngineLink,
    started: Started,
    text: "tuple[Tokenizer, ChatTemplate]",
    metrics: Metrics,
) -> "Service":
    from trimaran.server.app import Service, Version
    from trimaran.server.dataplane import DataPlane, Limits
    from trimaran.server.openai.identity import ModelCard

    tokenizer, template = text
    limits = Limits(
        max_inflight=options.max_num_seqs + options.max_waiting,
        max_running=options.max_num_seqs,
        context=started.context,
        vocab=started.vocab,
        deadline=options.timeout_request,
    )
    about = Version(
        __version__, started.executor, started.isa, started.threads, started.weight_format, started.kv_format
    )
    plane = DataPlane(link, tokenizer, limits, metrics)
    return Service(plane, template, ModelCard(names, started, __version__), about)


def _app(service: "Service", options: ServeOptions) -> Any:
    from trimaran.server.app import Access, create_app

    access = Access(
        api_keys=options.api_key,
        allowed_origins=options.allowed_origins,
        max_body_bytes=options.max_body_bytes,
        body_seconds=options.timeout_body,
    )
    return create_app(service, access)


def _ready_line(name: str, address: str, seconds: float, started: Started) -> str:
    threads = f"{started.threads} thread" + ("s" if started.threads != 1 else "")
    return (
        f"Trimaran {__version__} serves {name} on {address}/v1 (ready in {seconds:.1f} s; {started.executor} executor, "
        f"{started.isa}, {threads}; weights {started.weight_format}, {started.weight_bytes / 1e6:.0f} MB; "
        f"KV {started.kv_format}, {started.pages} pages of {started.page_size}; context {started.context})"
    )
