"""When a new engine process follows one that has ended. Pure: seconds come in, seconds go out."""

from dataclasses import dataclass

FIRST_PAUSE = 1.0
MOST_PAUSE = 30.0


@dataclass(frozen=True)
class RestartPolicy:
    """``limit`` restarts in a row, None: any number; a process that lived for ``stable`` seconds begins a new row."""

    when: str = "on-failure"  # or "never"
    limit: int | None = 5
    stable: float = 60.0


class Restarts:
    """The row of restarts so far."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._row = 0

    def pause_after(self, lived: float) -> float | None:
        """Seconds until the next start, after a process that lived for ``lived`` seconds; ``None``: give up."""
        if lived >= self._policy.stable:
            self._row = 0
        if self._policy.when == "never" or self._row == self._policy.limit:
            return None
        pause: float = min(MOST_PAUSE, FIRST_PAUSE * 2 ** min(self._row, 10))  # rows may be long
        self._row += 1
        return pause

    def why(self, name: str) -> str:
        """What to say on giving up."""
        if self._policy.when == "never":
            return f"the {name} process ended, and --restart is never"
        return f"the {name} did not stay up in {self._policy.limit} restarts; giving up"
