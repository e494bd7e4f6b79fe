import threading
import time

import pytest

from trimaran.server import text_work
from trimaran.server.text_work import LONG_TEXT, TextWork


async def test_what_is_quick_stays_on_the_loop_and_what_is_slow_leaves_it(monkeypatch):
    monkeypatch.setattr(text_work, "SLOW_SECONDS", 0.02)
    work = TextWork()
    seconds = 0.0

    def where() -> bool:
        time.sleep(seconds)
        return threading.current_thread() is threading.main_thread()

    assert await work.run(10, where)
    assert not await work.run(LONG_TEXT + 1, where)
    seconds = 0.03
    assert await work.run(10, where), "nobody knew"
    assert not await work.run(10, where)
    seconds = 0.0
    assert not await work.run(10, where)
    assert await work.run(10, where), "it was quick again"


async def test_errors_come_through():
    def fails(what: str) -> None:
        raise KeyError(what)

    with pytest.raises(KeyError, match="x"):
        await TextWork().run(10, fails, "x")
    with pytest.raises(KeyError, match="x"):
        await TextWork().run(LONG_TEXT + 1, fails, what="x")
