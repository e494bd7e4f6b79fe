"""Gets each line of a batch its answer: in its turn, within its tenant's limits, and whatever dies meanwhile."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from starlette.types import ASGIApp

from trimaran.server.admission import Admission
from trimaran.server.batches.call import Answer, call
from trimaran.server.batches.gate import Gate
from trimaran.server.errors import answer
from trimaran.server.tenants import RateLimitError, Tenant

MOST_DEATHS = 3  # of engines while they ran one line: after that it is taken to be the line's fault
PAUSE_SECONDS = 0.25  # before a line that was turned away asks again
LIMIT_SECONDS = 1.0  # the longest that a line waits before it looks again whether its tenant may
_FOR_NOW = (429, 503)  # statuses of what will be otherwise later

log = logging.getLogger(__name__)


class Asking:
    """One server's. Use it from one event loop."""

    def __init__(self, app: ASGIApp, plane: Admission, concurrency: int) -> None:
        """``app`` answers, behind the guards; ``concurrency``: lines at once, other requests that run among them."""
        self._app = app
        self._plane = plane
        self._metrics = plane.metrics.batches
        self._gate = Gate(concurrency, lambda: max(0, plane.running - self._gate.inside))
        self._suspects = asyncio.Lock()

    async def turn(self, tenant: Tenant) -> None:
        """Waits until a line of ``tenant`` may run; ``done`` ends it."""
        while True:
            try:
                tenant.enter()
                break
            except RateLimitError as error:
                pause = PAUSE_SECONDS if error.code == "concurrency" else min(error.retry_after, LIMIT_SECONDS)
                await asyncio.sleep(pause)
        try:
            await self._gate.enter()
        except BaseException:
            tenant.leave()
            raise
        self._metrics.running.inc()

    def done(self, tenant: Tenant) -> None:
        """Ends what ``turn`` began."""
        self._metrics.running.dec()
        self._gate.leave()
        tenant.leave()

    async def ask(self, path: str, body: bytes, tenant: Tenant) -> Answer:
        """The answer to a POST of ``body``, JSON, that is more than "not now". Cancelling this ends the request.

        A line that was there when an engine died is asked again. For the last time no other such line runs beside it,
        so that one whose fault it is does not take the others with it.
        """
        deaths = 0
        while True:
            while self._plane.trouble() is not None:  # noqa: ASYNC110, its end is no event
                await asyncio.sleep(PAUSE_SECONDS)
            async with self._alone(deaths == MOST_DEATHS - 1):
                try:
                    said = await call(self._app, path, body, tenant)
                except Exception as error:
                    log.exception("a bug ended a line of a batch")
                    told = answer(error)
                    return Answer(told.status, "", told.body, told.error.code)
            if said.status not in _FOR_NOW:
                return said
            if said.code == "engine_unavailable":
                deaths += 1
                if deaths == MOST_DEATHS:
                    return said
                self._metrics.retried.inc()
            await asyncio.sleep(PAUSE_SECONDS)

    @contextlib.asynccontextmanager
    async def _alone(self, needed: bool) -> AsyncIterator[None]:
        if not needed:
            yield
            return
        async with self._suspects:
            yield
