"""Where text becomes tokens: on the event loop while that is quick, else in a thread: the loop serves everybody."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONG_TEXT = 16_384  # bytes of body that are too many for the loop
SLOW_SECONDS = 0.05  # that are too many too: what took so long, such as a chat template that loops, will again


class TextWork:
    """In a thread, one request at a time: megabytes of text take hundreds of megabytes meanwhile."""

    def __init__(self) -> None:
        self._alone = asyncio.Lock()
        self._slow = False

    async def run(self, size: int, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``make(*args, **kwargs)`` for a request whose body has ``size`` bytes."""
        work = partial(make, *args, **kwargs)
        if size > LONG_TEXT:
            async with self._alone:
                return await asyncio.to_thread(work)
        if self._slow:
            async with self._alone:
                return await asyncio.to_thread(self._timed, work)
        return self._timed(work)

    def _timed(self, work: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return work()
        finally:
            self._slow = time.monotonic() - began > SLOW_SECONDS
