"""How often a failing exchange is tried again, and how long to wait in between."""

import time

from trimaran.base.errors import SourceError

ATTEMPTS = 5  # failures in a row before giving up
FIRST_PAUSE = 0.5  # seconds; doubles with each failure
LONGEST_PAUSE = 30.0  # also the most that a server's Retry-After is honoured


class TransientError(Exception):
    """An exchange failed in a way that may pass; try again, after ``pause`` seconds if the server says so."""

    def __init__(self, message: str, *, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class GaveUpError(SourceError):
    """Failures that may pass have not passed."""


class Patience:
    """Counts failures in a row. ``what`` begins the error when it runs out."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0

    def failed(self, error: TransientError) -> None:
        """Waits before the next try, or raises ``GaveUpError`` when there have been too many."""
        self._failures += 1
        if self._failures >= ATTEMPTS:
            raise GaveUpError(f"{self._what}: gave up after {self._failures} tries: {error}") from error
        pause = FIRST_PAUSE * 2 ** (self._failures - 1) if error.pause is None else error.pause
        time.sleep(min(pause, LONGEST_PAUSE))

    def progressed(self) -> None:
        """Forgets earlier failures: something worth having has arrived since."""
        self._failures = 0
