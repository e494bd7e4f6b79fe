"""Who is in: how many sequences a server takes on at once, when a refused client should come again, and the end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from trimaran.base import errors
from trimaran.server.engine import Backend
from trimaran.server.errors import DrainingError
from trimaran.server.metrics import Metrics

ABORT_SECONDS = 1.0


class Admitted(Protocol):
    """A request that is in."""

    def fail(self, error: errors.TrimaranError) -> None:
        """Ends it with ``error`` for whoever runs it."""
        ...


class Admission:
    """Counts requests in and out over what runs them. Use it from one event loop."""

    def __init__(self, link: Backend, metrics: Metrics, *, max_inflight: int, max_running: int) -> None:
        """``max_inflight``: sequences that run and wait together."""
        self.metrics = metrics
        self.link = link
        self._max_inflight, self._max_running = max_inflight, max_running
        self._runs: set[Admitted] = set()
        self._inflight = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._request_seconds = 1.0  # moving average, for Retry-After
        self._work: Callable[[], Awaitable[None]] | None = None

    def admit(self, run: Admitted, wanted: int) -> None:
        """Takes on a request of ``wanted`` sequences; raises ``DrainingError`` or ``QueueFullError``."""
        if self._draining:
            raise DrainingError("the server is stopping")
        if self._inflight + wanted > self._max_inflight:
            turns = (self._inflight + wanted) / self._max_running
            raise errors.QueueFullError(
                f"the server already holds {self._inflight} sequences of at most {self._max_inflight}",
                retry_after=min(60.0, turns * self._request_seconds),
            )
        self._runs.add(run)
        self._inflight += wanted
        self._idle.clear()

    def release(self, run: Admitted, sequences: int) -> None:
        """Lets an admitted request go."""
        self._runs.discard(run)
        self._inflight -= sequences
        if not self._runs:
            self._idle.set()

    def took(self, seconds: float) -> None:
        """Notes how long a request that somebody waited for has taken."""
        self.metrics.request_seconds.observe(seconds)
        self._request_seconds += 0.1 * (seconds - self._request_seconds)

    @property
    def running(self) -> int:
        """Requests that have been admitted and not ended."""
        return len(self._runs)

    def before_drain(self, end: Callable[[], Awaitable[None]]) -> None:
        """Has ``close`` await ``end``, which ends requests that nobody waits for."""
        self._work = end

    async def close(self) -> None:
        """Admits nothing more, and ends what nobody waits for. Idempotent."""
        self._draining = True
        if self._work is not None:
            await self._work()

    async def drain(self, deadline: float) -> int:
        """Closes, waits up to ``deadline`` seconds, ends what still runs; returns how much that was."""
        await self.close()
        try:
            async with asyncio.timeout(deadline):
                await self._idle.wait()
        except TimeoutError:
            left = list(self._runs)
            for run in left:
                run.fail(DrainingError("the server stopped before the request was done"))
            with suppress(TimeoutError):  # until they have told their clients, unless one does not listen
                async with asyncio.timeout(ABORT_SECONDS):
                    await self._idle.wait()
            return len(left)
        return 0

    def trouble(self) -> str | None:
        """Why a request would not be answered now, or ``None``."""
        return "the server is stopping" if self._draining else self.link.trouble()
