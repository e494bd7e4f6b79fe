"""Runs the app on a socket until it is told to stop or the engine is lost."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from signal import Signals
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from trimaran.server.admission import Admission
from trimaran.server.engine import Backend
from trimaran.server.http import HttpProtocol

TLS_END_SECONDS = 1.0  # for a client to agree that the connection is over
LINGER_SECONDS = 2  # for the last bytes of answers that have already been made

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listening:
    """How connections are treated; times in seconds."""

    keep_alive: int
    grace: float  # for running requests, after a signal
    head: float  # for a request's head, and before it for TLS to begin
    connections: int
    tls: ssl.SSLContext | None = None


class _HttpServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, how: Listening, protocol: Callable[..., HttpProtocol]) -> None:
        super().__init__(config)
        self._how = how
        self._protocol = protocol

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with a limit on the time that TLS takes to begin: until then nobody else watches."""
        tls = self._how.tls
        begin, end = (None, None) if tls is None else (self._how.head, TLS_END_SECONDS)
        make = partial(self._protocol, config=self.config, server_state=self.server_state, app_state={})
        create = asyncio.get_running_loop().create_server
        self.servers = [
            await create(
                make,
                sock=sock,
                ssl=tls,
                ssl_handshake_timeout=begin,
                ssl_shutdown_timeout=end,
                backlog=self.config.backlog,
            )
            for sock in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would stop accepting at once and exit with the signal's status."""
        yield


async def serve_until_stopped(
    app: ASGIApp,
    sock: socket.socket,
    plane: Admission,
    link: Backend,
    stops: asyncio.Queue[Signals],
    how: Listening,
) -> int:
    """Serves until ``stops`` yields, then stops in order; returns the process's exit code.

    After the first item new requests get 503, running ones have ``how.grace`` seconds and then end with an error;
    the code is 0. A second item skips the wait; the code is 1. It is 1 too when the engine is lost for good.
    """
    limits = {"head_seconds": how.head, "max_connections": how.connections, "metrics": plane.metrics}
    protocol = type("Protocol", (HttpProtocol,), limits)
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nothing here asks who the client is
        timeout_keep_alive=how.keep_alive,
        timeout_graceful_shutdown=LINGER_SECONDS,
    )
    server = _HttpServer(config, how, protocol)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    first, second = (asyncio.create_task(stops.get()) for _ in range(2))
    try:
        events: set[asyncio.Future[Any]] = {serving, first, link.lost}
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        code = 0 if first.done() else 1
        if link.lost.done():
            log.error("%s", link.lost.result())
        elif first.done():
            await plane.close()
            if plane.running:
                log.info(
                    "stopping: running requests (%d) have %g s to finish; a second signal ends them now",
                    plane.running,
                    how.grace,
                )
            else:
                log.info("stopping: no request is running")
            draining = asyncio.create_task(plane.drain(how.grace))
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
