import asyncio
import threading
import time

import pytest
from starlette.requests import Request
from starlette.types import Message

from trimaran.server import text_work
from trimaran.server.guards import LATER
from trimaran.server.text_work import LONG_TEXT, TextWork


def request(size: int, *, later: bool = False) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(size)}

    return Request({"type": "http", LATER: later}, receive)


async def test_what_is_quick_stays_on_the_loop_and_what_is_slow_leaves_it(monkeypatch):
    monkeypatch.setattr(text_work, "SLOW_SECONDS", 0.02)
    work = TextWork()
    short, long = request(10), request(LONG_TEXT + 1)
    seconds = 0.0

    def where() -> bool:
        time.sleep(seconds)
        return threading.current_thread() is threading.main_thread()

    assert await work.run(short, where)
    assert not await work.run(long, where)
    seconds = 0.03
    assert await work.run(short, where), "nobody knew"
    assert not await work.run(short, where)
    seconds = 0.0
    assert not await work.run(short, where)
    assert await work.run(short, where), "it was quick again"


async def test_errors_come_through():
    def fails(what: str) -> None:
        raise KeyError(what)

    with pytest.raises(KeyError, match="x"):
        await TextWork().run(request(10), fails, "x")
    with pytest.raises(KeyError, match="x"):
        await TextWork().run(request(LONG_TEXT + 1), fails, what="x")


async def test_others_do_not_wait_for_all_of_the_background():
    work = TextWork()
    order: list[str] = []
    lines = [
        asyncio.create_task(work.run(request(LONG_TEXT + 1, later=True), order.append, f"line {number}"))
        for number in range(5)
    ]
    await asyncio.sleep(0)
    await work.run(request(LONG_TEXT + 1), order.append, "other")
    await asyncio.gather(*lines)
    assert order.index("other") <= 2, "behind the one that ran and the one that waited"
    assert len(order) == 6
