"""The roles of two engines in one process, with a real link between them."""

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec import structs
from tests.pools.links import NAMES

from trimaran.base.errors import TransferError, UnsupportedError
from trimaran.base.messages import Admit, Admitted, Failed, FromEngine, Handed, Prefill, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.engine.config import PoolConfig
from trimaran.engine.decode_role import DecodeRole
from trimaran.engine.engine import Engine
from trimaran.engine.prefill_role import PrefillRole
from trimaran.engine.role import EngineRole, open_role
from trimaran.kernels.null import NullModel
from trimaran.pools.transports import TRANSPORTS
from trimaran.server.options import TRANSPORTS as OFFERED

from .driving import greedy, null_engine, run
from .pooled import check_whole

KEY = "k" * 64
LIMIT = 20.0  # seconds, of everything


class Both:
    """A server's part: what it sends to whom, and what it hears."""

    def __init__(self, seconds: float = LIMIT, key: str = KEY, transport: str = "shm", **options: Any) -> None:
        self.engines: list[Engine] = []
        self.roles: list[EngineRole] = []
        for name, secret in (("prefill", key), ("decode", KEY)):
            engine = null_engine(role=name, context=512, max_num_batched_tokens=64, **options)
            self.engines.append(engine)
            self.roles.append(open_role(engine, PoolConfig(name=name, key=secret, transports=(transport,))))
        self.prefill, self.decode = self.engines
        self.seconds = seconds
        self.said: dict[str, list[FromEngine]] = {}
        self.ended: dict[str, FromEngine] = {}  # what the prefill engine said last
        self._submits: dict[str, Submit] = {}

    def admit(self, request: Submit) -> None:
        self._submits[request.id] = request
        self.roles[1].take(Admit(request, self.prefill.info.identity, self.seconds, "prefill"))

    def turn(self) -> None:
        """One turn of both workers' loops."""
        for index, (engine, role) in enumerate(zip(self.engines, self.roles, strict=True)):
            engine.finish()
            engine.reap(time.monotonic())
            for message in role.turn() + engine.step():
                self._hear(index, message)

    def until(self, done: Callable[[], bool]) -> None:
        limit = time.monotonic() + LIMIT
        while not done():
            assert time.monotonic() < limit, (self.said, self.ended, self.prefill.stats(), self.decode.stats())
            self.turn()
            if all(engine.idle or engine.stalled for engine in self.engines):
                poll = select.poll()
                for role in self.roles:
                    for descriptor in role.filenos():
                        poll.register(descriptor, select.POLLIN)
                poll.poll(20)

    def is_over(self, *names: str) -> bool:
        return all(_over(self.said.get(name, [])) for name in names)

    def tokens(self, name: str) -> list[int]:
        return [token.id for message in self.said[name] if isinstance(message, Tokens) for token in message.tokens]

    def close(self) -> None:
        for role in self.roles:
            role.close()

    def _hear(self, index: int, message: FromEngine) -> None:
        assert isinstance(message, Tokens | Failed | Admitted | Handed)
        if isinstance(message, Admitted):
            request = self._submits[message.id]
            request = structs.replace(request, sampling=structs.replace(request.sampling, seed=message.seed))
            self.roles[0].take(Prefill(request, message.ticket))
        elif index == 0:
            assert message.id not in self.ended, "a second end"
            self.ended[message.id] = message
        else:
            assert not _over(self.said.get(message.id, [])), "something after the end"
            self.said.setdefault(message.id, []).append(message)


def _over(messages: list[FromEngine]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, Failed) or (isinstance(last, Tokens) and last.finish is not None)


@contextmanager
def both(**options: Any) -> Iterator[Both]:
    pools = Both(**options)
    try:
        yield pools
    finally:
        pools.close()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("transport", NAMES)
def test_requests_come_out_as_of_one_engine(transport, overlap):
    options: dict[str, Any] = {"null": NullModel(vocab=512, context=512, eos_id=3, eos_one_in=30, windows=(None, 40))}
    submits = [
        Submit(str(n), [n % 3] * 50 + list(range(60 * n)), SamplingParams(max_tokens=n + 1, seed=n, logprobs=1))
        for n in range(6)
    ]
    alone = run(null_engine(context=512, **options), *submits)
    with both(transport=transport, overlap=overlap, **options) as pools:
        for submit in submits:
            pools.admit(submit)
        pools.until(lambda: pools.is_over(*alone) and len(pools.ended) == len(submits))
        for name, answer in alone.items():
            assert pools.tokens(name) == answer.ids
            last = pools.said[name][-1]
            assert isinstance(last, Tokens)
            assert (last.finish, last.stopped_by) == (answer.finish, answer.stopped_by)
            handed = pools.ended[name]
            assert isinstance(handed, Handed)
            assert handed.sent > 0
        for engine in pools.engines:
            check_whole(engine)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("turns", [1, 2, 3, 4, 6])
def test_a_cancel_on_either_side_ends_both(side, turns):
    with both() as pools:
        pools.admit(Submit("a", list(range(300)), greedy(50)))
        for _ in range(turns):
            pools.turn()
        pools.roles[side].cancel("a")
        pools.until(lambda: all(engine.idle for engine in pools.engines) and not pools.prefill.leases)
        for engine in pools.engines:
            check_whole(engine)
        assert "a" not in pools.said or pools.is_over("a")


def test_a_prompt_that_does_not_come_in_time_fails_and_frees_its_pages():
    with both(seconds=0.2) as pools:
        pools.roles[0].take = lambda message: None  # type: ignore[method-assign]  # it is deaf
        pools.admit(Submit("a", list(range(100)), greedy(5)))
        pools.until(lambda: pools.is_over("a"))
        failed = pools.said["a"][-1]
        assert isinstance(failed, Failed)
        assert (failed.kind, "lease of 0.2 s is over" in failed.message) == ("TransferError", True)
        assert pools.roles[1].told(pools.decode.stats()).transfers_failed == {"expired": 1}
        check_whole(pools.decode)


def test_a_receiver_that_ends_fails_what_is_on_its_way():
    with both() as pools:
        pools.admit(Submit("a", list(range(300)), greedy(5)))
        pools.turn()
        pools.roles[1].close()
        pools.engines[1:], pools.roles[1:] = [], []
        pools.until(lambda: "a" in pools.ended)
        failed = pools.ended["a"]
        assert isinstance(failed, Failed)
        assert failed.kind == "TransferError"
        check_whole(pools.prefill)


def test_a_ticket_under_another_key_is_refused():
    with both(key="x" * 64) as pools:
        pools.admit(Submit("a", list(range(30)), greedy(5)))
        with pytest.raises(TransferError, match="seal"):
            pools.until(lambda: False)


def test_a_ticket_for_another_model_is_refused():
    with both() as pools:
        pools.prefill.info = structs.replace(pools.prefill.info, digest="another")
        pools.admit(Submit("a", list(range(30)), greedy(5)))
        with pytest.raises(TransferError, match="model null; this engine has another"):
            pools.until(lambda: False)


def test_roles_refuse_what_is_not_theirs():
    with both() as pools:
        with pytest.raises(UnsupportedError, match="computes prompts only"):
            pools.roles[0].take(Admit(Submit("a", [1], greedy(1)), "", 1.0, ""))
        with pytest.raises(UnsupportedError, match="decodes only"):
            pools.roles[1].take(Prefill(Submit("a", [1], greedy(1)), b""))
        assert isinstance(pools.roles[0], PrefillRole)
        assert isinstance(pools.roles[1], DecodeRole)
    with pytest.raises(UnsupportedError, match="no pool"):
        open_role(null_engine(), None).take(Prefill(Submit("a", [1], greedy(1)), b""))


def test_the_server_offers_the_transports_that_there_are():
    assert tuple(TRANSPORTS) == OFFERED
