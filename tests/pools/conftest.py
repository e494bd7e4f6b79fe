import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def _things() -> tuple[int, int]:
    """Open descriptors and threads of this process."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """A test must give back every descriptor and thread, which it may take a moment to do."""
    before = _things()
    yield
    until = time.monotonic() + 10
    while _things() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert _things() <= before, "descriptors and threads are left"
