"""How many lines of batches run at once: fewer the more requests of other kinds there are, but always one."""

import asyncio
from collections import deque
from collections.abc import Callable


class Gate:
    """Lets in by turns, in the order in which they came. Use it from one event loop."""

    def __init__(self, most: int, others: Callable[[], int]) -> None:
        """``others`` tells how many requests run that are no lines."""
        self._most, self._others = most, others
        self._queue: deque[asyncio.Future[None]] = deque()
        self.inside = 0

    async def enter(self) -> None:
        """Returns once there is room; ``leave`` gives it back."""
        if self._room() and all(turn.cancelled() for turn in self._queue):
            self.inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.leave()  # it was let in at the same moment
            raise

    def leave(self) -> None:
        self.inside -= 1
        while self._queue and self._room():
            turn = self._queue.popleft()
            if not turn.cancelled():
                self.inside += 1
                turn.set_result(None)

    def _room(self) -> bool:
        return self.inside < max(1, self._most - self._others())
