"""The router over workers that only write down what they are told."""

import asyncio
from collections.abc import Iterable
from typing import Any

import prometheus_client
import pytest

from trimaran.base import errors
from trimaran.base.failures import error_of, failure_of
from trimaran.base.messages import Admit, Admitted, Failed, Handed, Prefill, Started, Submit, Token, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.server import router as routing
from trimaran.server.pool_metrics import PoolMetrics
from trimaran.server.router import ATTEMPTS, Deadlines, Router
from trimaran.server.workers import Pool, Worker

LONG = Deadlines(60, 60, 60)
STARTED = Started("m", "d", 999, 99, "w", "k", "null", "none", 1, [], 16, 0, 0, identity="same")


class Link:
    """Stands in for an ``EngineLink``."""

    def __init__(self) -> None:
        self.up = True
        self.returning = False
        self.deviated = False
        self.distrusted: list[str] = []
        self.sent: list[Any] = []
        self.cancelled: list[str] = []
        self.lost: asyncio.Future[errors.TrimaranError] = asyncio.get_running_loop().create_future()
        self._listeners: dict[str, Any] = {}

    def submit(self, requests: Iterable[Any], listener: Any) -> None:
        for request in requests:
            self.sent.append(request)
            self._listeners[request.id] = listener

    def cancel(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            if self._listeners.pop(id_, None):
                self.cancelled.append(id_)

    def distrust(self, source: str) -> None:
        self.distrusted.append(source)

    def trouble(self) -> str | None:
        return None if self.up else "it is down"

    async def stop(self, deadline: float) -> None:
        pass

    def say(self, message: Any) -> None:
        self._listeners[message.id].hear([message])

    def die(self) -> None:
        self.up, self.returning = False, True
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.fail(errors.EngineDiedError("it died"))
        self.changed()

    def rise(self) -> None:
        """There is a new process."""
        self.up, self.returning = True, False
        self.changed()

    def give_up(self) -> None:
        self.returning = False
        self.lost.set_result(errors.EngineDiedError("for good"))

    def deviate(self) -> None:
        self.up, self.deviated = False, True
        self.changed()

    def changed(self) -> None:
        """The router puts its own in place."""


class Client:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def hear(self, messages: list[Any]) -> None:
        self.heard += messages

    def fail(self, error: errors.TrimaranError) -> None:
        self.heard.append(error)


class Setting:
    """A router over some workers, and a client."""

    def __init__(self, prefill: int = 1, decode: int = 1, deadlines: Deadlines = LONG, most: int = 1000) -> None:
        self.prefill, self.decode = [Link() for _ in range(prefill)], [Link() for _ in range(decode)]
        pools = [
            Pool(role, [Worker(link, STARTED, 8, most) for link in links])  # type: ignore[arg-type]  # stand-ins
            for role, links in (("prefill", self.prefill), ("decode", self.decode))
        ]
        self.registry = prometheus_client.CollectorRegistry()
        self.router = Router(*pools, deadlines, PoolMetrics(self.registry))
        self.client = Client()

    def submit(self, name: str, tokens: int = 20, **more: Any) -> None:
        self.router.submit([Submit(name, [1] * tokens, SamplingParams(max_tokens=5), **more)], self.client)

    def admit(self, worker: int = 0, seed: int = 7) -> Admit:
        """The decode worker takes the last request that it was sent."""
        admit = self.decode[worker].sent[-1]
        assert isinstance(admit, Admit)
        self.decode[worker].say(Admitted(admit.id, b"ticket", seed))
        return admit


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  # what it waits for tells nobody
            await asyncio.sleep(0.01)


async def test_the_way_of_a_request():
    setting = Setting()
    setting.submit("a")
    admit = setting.admit(seed=-5)
    assert (admit.id, admit.origin, admit.seconds, admit.source) == ("a", "same", 60, "prefill worker 0")
    [prefill] = setting.prefill[0].sent
    assert isinstance(prefill, Prefill)
    assert (prefill.id, prefill.ticket, prefill.request.sampling.seed) == ("a", b"ticket", -5)
    first, last = Tokens("a", [Token(3)]), Tokens("a", [Token(4)], "length")
    setting.decode[0].say(first)
    setting.decode[0].say(last)
    assert setting.client.heard == [first, last]
    setting.prefill[0].say(Handed("a", 100, 0.5, 0.01))
    assert setting.registry.get_sample_value("trimaran_handoff_bytes_total") == 100
    assert setting.prefill[0].cancelled == []
    await setting.router.stop(0)


async def test_decode_workers_hear_whose_pages_are_not_trusted_any_more():
    setting = Setting(prefill=2, decode=2)
    setting.decode[0].deviate()
    setting.prefill[0].die()
    assert setting.decode[1].distrusted == [], "nothing that another worker has"
    setting.prefill[1].deviate()
    assert [link.distrusted for link in setting.decode] == [["prefill worker 1"]] * 2
    await setting.router.stop(0)


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_another_attempt_has_an_id_of_its_own(side):
    setting = Setting(prefill=2, decode=2)
    setting.submit("a")
    setting.admit()
    (setting.prefill if side == "prefill" else setting.decode)[0].die()
    again = setting.admit(worker=0 if side == "prefill" else 1)
    assert again.id == "a~2"
    old = Tokens("a", [Token(9)])
    if side == "prefill":
        assert setting.decode[0].cancelled == ["a"]
    assert setting.prefill[1 if side == "prefill" else 0].sent[-1].id == "a~2"
    new = Tokens("a~2", [Token(3)], "length")
    setting.decode[0 if side == "prefill" else 1].say(new)
    assert setting.client.heard == [Tokens("a", [Token(3)], "length")]
    assert old not in setting.client.heard
    await setting.router.stop(0)


async def test_there_is_no_attempt_after_the_first_token():
    setting = Setting(decode=2)
    setting.submit("a")
    setting.admit()
    setting.decode[0].say(Tokens("a", [Token(3)]))
    setting.decode[0].die()
    assert isinstance(setting.client.heard[-1], errors.EngineDiedError)
    assert setting.decode[1].sent == []
    await setting.router.stop(0)


async def test_attempts_come_to_an_end():
    setting = Setting()
    setting.submit("a")
    for _ in range(ATTEMPTS):
        name = setting.admit().id
        setting.prefill[0].say(failure_of(name, errors.TransferError("lost on the way")))
    [failed] = setting.client.heard
    assert isinstance(failed, Failed)
    assert (failed.id, failed.kind) == ("a", "EngineDiedError")
    assert setting.registry.get_sample_value("trimaran_router_retries_total", {"cause": "TransferError"}) == 2
    await setting.router.stop(0)


async def test_what_would_fail_again_is_not_tried_again():
    setting = Setting()
    setting.submit("a")
    setting.decode[0].say(failure_of("a", errors.ContextLengthError("too long", param="prompt")))
    [failed] = setting.client.heard
    assert isinstance(error_of(failed), errors.ContextLengthError)
    assert failed.param == "prompt"
    await setting.router.stop(0)


async def test_stages_have_deadlines(monkeypatch):
    monkeypatch.setattr(routing, "WATCH_SECONDS", 0.01)
    setting = Setting(deadlines=Deadlines(queue=60, admission=0.05, handoff=0.05))
    setting.submit("a")
    await until(lambda: len(setting.decode[0].sent) == 2)  # the first attempt got no pages
    setting.admit()
    await until(lambda: len(setting.decode[0].sent) == 3)  # the second was not handed over
    assert setting.prefill[0].cancelled == ["a~2"]
    await until(lambda: setting.client.heard)
    assert "too long waiting for pages" in setting.client.heard[0].message
    await setting.router.stop(0)


async def test_a_request_that_finds_no_room_is_told_so(monkeypatch):
    monkeypatch.setattr(routing, "WATCH_SECONDS", 0.01)
    setting = Setting(deadlines=Deadlines(queue=0.05, admission=60, handoff=60), most=30)
    setting.submit("a")
    setting.submit("b")
    assert [sent.id for sent in setting.decode[0].sent] == ["a"]
    await until(lambda: setting.client.heard)
    assert (setting.client.heard[0].id, setting.client.heard[0].kind) == ("b", "QueueFullError")
    await setting.router.stop(0)


async def test_tenants_take_turns():
    setting = Setting(most=30)
    for name in ("a1", "a2", "a3"):
        setting.submit(name, tenant="a")
    setting.submit("b1", tenant="b")
    order = []
    while len(order) < 4:
        name = setting.admit().id
        order.append(name)
        setting.decode[0].say(Tokens(name, [Token(1)], "length"))
    assert order == ["a1", "b1", "a2", "a3"]
    await setting.router.stop(0)


async def test_a_session_and_a_prefix_keep_their_workers():
    setting = Setting(prefill=2, decode=2)
    setting.submit("other", tokens=300)  # worker 0 has something to do
    setting.submit("a", session="s")
    setting.admit(worker=1)
    setting.decode[1].say(Tokens("a", [Token(1)], "length"))
    setting.decode[0].say(failure_of("other", errors.NumericsError("x")))
    setting.submit("b", session="s")
    assert setting.decode[1].sent[-1].id == "b"
    await setting.router.stop(0)


async def test_a_client_that_leaves_is_forgotten():
    setting = Setting(most=30)
    setting.submit("a")
    setting.submit("b")
    setting.admit()
    setting.router.cancel(["a"])
    assert setting.decode[0].cancelled == setting.prefill[0].cancelled == ["a"]
    assert setting.decode[0].sent[-1].id == "b", "there is room for the next"
    setting.router.cancel(["b", "unknown"])
    assert setting.router.prefill.workers[0].tokens == setting.router.decode.workers[0].tokens == 0
    await setting.router.stop(0)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_what_comes_while_the_last_worker_of_a_pool_is_started_anew_waits_for_it(role):
    setting = Setting()
    worker = getattr(setting, role)[0]
    worker.die()
    assert setting.router.trouble() == f"the {role} pool has no worker: it is down"
    setting.submit("a")
    assert setting.decode[0].sent == []
    worker.rise()
    assert setting.admit().id == "a"
    await setting.router.stop(0)


async def test_what_waits_for_a_new_worker_does_so_up_to_the_deadline_of_the_queue(monkeypatch):
    monkeypatch.setattr(routing, "WATCH_SECONDS", 0.01)
    setting = Setting(deadlines=Deadlines(queue=0.05, admission=60, handoff=60))
    setting.prefill[0].die()
    setting.submit("a")
    await until(lambda: setting.client.heard)
    assert (setting.client.heard[0].id, setting.client.heard[0].kind) == ("a", "EngineDiedError")
    assert "the prefill pool has no worker" in setting.client.heard[0].message
    await setting.router.stop(0)


async def test_a_pool_whose_workers_are_not_trusted_takes_nothing():
    setting = Setting()
    setting.decode[0].deviate()
    with pytest.raises(errors.EngineDiedError, match="the decode pool has no worker"):
        setting.submit("a")
    await setting.router.stop(0)


async def test_a_pool_without_workers_takes_nothing():
    setting = Setting()
    setting.prefill[0].die()
    setting.prefill[0].give_up()
    with pytest.raises(errors.EngineDiedError, match="the prefill pool"):
        setting.submit("a")
    assert str(await asyncio.wait_for(setting.router.lost, 5)) == "for good"
    await setting.router.stop(0)
