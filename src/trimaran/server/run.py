"""``trimaran serve`` from start to end: engine process and tokenizer side by side, then HTTP, then an orderly stop."""

import asyncio
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.base.messages import Started
from trimaran.host.process import EngineProcess
from trimaran.server.engine import EngineLink
from trimaran.server.listen import bind, is_loopback, serve_until_stopped, url
from trimaran.server.metrics import Metrics
from trimaran.server.options import ServeOptions

if TYPE_CHECKING:
    from trimaran.server.app import Service
    from trimaran.text.template import ChatTemplate
    from trimaran.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


async def run(
    options: ServeOptions, names: tuple[str, ...], path: Path, engine: Mapping[str, Any], version: str
) -> int:
    """Serves the checkpoint at ``path`` under ``names`` until stopped; returns the exit code.

    ``engine`` is the engine process's configuration. Raises a ``TrimaranError`` when the server cannot start.
    """
    begun = time.monotonic()
    with bind(options.host, options.port) as sock:
        if not is_loopback(sock) and not options.api_key:
            log.warning("ANYBODY who reaches %s may use this server: set --api-key or listen on 127.0.0.1", url(sock))
        metrics = Metrics()
        link = EngineLink(lambda: EngineProcess(engine), metrics)
        # The engine process loads the model while this one loads the tokenizer and the HTTP stack.
        loading = asyncio.create_task(asyncio.to_thread(_load_text, path))
        try:
            started = await link.start()
            service = _service(options, names, link, started, version, await loading, metrics)
            app = _app(service, options)
            seconds = time.monotonic() - begun
            print(_ready_line(names[0], url(sock), seconds, started, version), file=sys.stderr, flush=True)
            return await serve_until_stopped(
                app,
                sock,
                service.plane,
                link,
                keep_alive=options.timeout_keep_alive,
                grace=options.timeout_graceful_shutdown,
                head=options.timeout_body,
            )
        finally:
            loading.cancel()
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
    version: str,
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
    about = Version(version, started.executor, started.isa, started.threads, started.weight_format, started.kv_format)
    plane = DataPlane(link, tokenizer, limits, metrics)
    return Service(plane, template, ModelCard(names, started, version), about)


def _app(service: "Service", options: ServeOptions) -> Any:
    from trimaran.server.app import Access, create_app

    access = Access(
        api_keys=options.api_key,
        allowed_origins=options.allowed_origins,
        max_body_bytes=options.max_body_bytes,
        body_seconds=options.timeout_body,
    )
    return create_app(service, access)


def _ready_line(name: str, address: str, seconds: float, started: Started, version: str) -> str:
    threads = f"{started.threads} thread" + ("s" if started.threads != 1 else "")
    return (
        f"Trimaran {version} serves {name} on {address}/v1 (ready in {seconds:.1f} s; {started.executor} executor, "
        f"{started.isa}, {threads}; weights {started.weight_format}, {started.weight_bytes / 1e6:.0f} MB; "
        f"KV {started.kv_format}, {started.pages} pages of {started.page_size}; context {started.context})"
    )
