"""How much of something is left of so much a minute: a bucket that fills steadily. Pure: the time is passed in."""


class Bucket:
    """``per_minute`` of something, all of which may go at once when none has gone for a minute."""

    def __init__(self, per_minute: float, now: float) -> None:
        self._most = per_minute
        self._level = per_minute
        self._at = now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` will be there; 0 when it is."""
        self._fill(now)
        missing = min(amount, self._most) - self._level
        return max(0.0, missing * 60 / self._most)

    def take(self, amount: float, now: float) -> None:
        """Takes ``amount``, whether it is there or not: what is not is owed."""
        self._fill(now)
        self._level -= amount

    def _fill(self, now: float) -> None:
        self._level = min(self._most, self._level + max(0.0, now - self._at) * self._most / 60)
        self._at = max(self._at, now)
