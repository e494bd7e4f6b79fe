"""A flag that can be polled: how threads of a link wake whoever uses it."""

import contextlib
import os
import threading


class Wake:
    """Readable from ``set`` to ``clear``. Any thread may call anything, also after ``close``."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._lock = threading.Lock()
        self._set = False
        self._closed = False

    def fileno(self) -> int:
        return self._reader

    def set(self) -> None:
        with self._lock:
            if not self._set and not self._closed:
                self._set = True
                os.write(self._writer, b"\0")

    def clear(self) -> None:
        with self._lock:
            if self._set and not self._closed:
                self._set = False
                os.read(self._reader, 1)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._reader)
            os.close(self._writer)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()
