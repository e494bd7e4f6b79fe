"""Runs the app on a socket until it is told to stop or the engine is lost."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from signal import Signals
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from trimaran.server.dataplane import DataPlane
from trimaran.server.engine import Backend
from trimaran.server.http import HttpProtocol

LINGER_SECONDS = 2  # for the last bytes of answers that have already been made

log = logging.getLogger(__name__)


class _HttpServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would stop accepting at once and exit with the signal's status."""
        yield


async def serve_until_stopped(
    app: ASGIApp,
    sock: socket.socket,
    plane: DataPlane,
    link: Backend,
    stops: asyncio.Queue[Signals],
    *,
    keep_alive: int,
    grace: float,
    head: float,
) -> int:
    """Serves until ``stops`` yields, then stops in order; returns the process's exit code.

    After the first item new requests get 503 and running ones ``grace`` seconds, after which they end with an error;
    the code is 0. A second item skips the wait; the code is 1. It is 1 too when the engine is lost for good.
    """
    protocol = type("Protocol", (HttpProtocol,), {"head_seconds": head})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nothing here asks who the client is
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=LINGER_SECONDS,
    )
    server = _HttpServer(config)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    first, second = (asyncio.create_task(stops.get()) for _ in range(2))
    try:
        events: set[asyncio.Future[Any]] = {serving, first, link.lost}
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        code = 0 if first.done() else 1
        if link.lost.done():
            log.error("%s", link.lost.result())
        elif first.done():
            if plane.running:
                log.info(
                    "stopping: running requests (%d) have %g s to finish; a second signal ends them now",
                    plane.running,
                    grace,
                )
            else:
                log.info("stopping: no request is running")
            draining = asyncio.create_task(plane.drain(grace))
            await asyncio.wait({draining, second}, return_when=asyncio.FIRST_COMPLETED)
            if not draining.done():
                draining.cancel()
                await plane.drain(0)
                code = 1
        await link.stop(0.0)
        server.should_exit = True
        await serving
        log.info("stopped")
        return code
    finally:
        for task in (first, second):
            task.cancel()
