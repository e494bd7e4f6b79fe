"""Where text becomes tokens: on the event loop while that is quick, else in a thread: the loop serves everybody."""

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from trimaran.server.guards import LATER

P = ParamSpec("P")
T = TypeVar("T")

LONG_TEXT = 16_384  # bytes of body that are too many for the loop
SLOW_SECONDS = 0.05  # that are too many too: what took so long, such as a chat template that loops, will again


class TextWork:
    """In a thread, one request at a time: megabytes of text take hundreds of megabytes meanwhile. Of requests in the
    background one at most waits for its turn among the others."""

    def __init__(self) -> None:
        self._alone = asyncio.Lock()
        self._background = asyncio.Lock()
        self._slow = False

    async def run(self, request: Request, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``make(*args, **kwargs)`` for a request whose body has been read."""
        work = partial(make, *args, **kwargs)
        long = len(await request.body()) > LONG_TEXT
        if not long and not self._slow:
            return self._timed(work)
        async with self._background if request.scope.get(LATER) else nullcontext(), self._alone:
            return await asyncio.to_thread(work if long else partial(self._timed, work))

    def _timed(self, work: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return work()
        finally:
            self._slow = time.monotonic() - began > SLOW_SECONDS
