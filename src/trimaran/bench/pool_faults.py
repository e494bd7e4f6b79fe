"""Requests over two engines in one process, each with a fault of its own on the way from one to the other.

The engines, their roles and the link are those of ``trimaran serve --pools``; the executor is the null one, whose
tokens are a hash of the history as read back through the page tables, so that any page in a wrong place shows.
"""

import select
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from random import Random

import msgspec
from msgspec import structs

from trimaran.base.errors import ConfigError, RequestError, TrimaranError
from trimaran.base.messages import Admit, Admitted, Failed, FromEngine, Handed, Prefill, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.bench.faulty_link import FAULTS, FaultyTransport, Plans
from trimaran.bench.fuzz.damage import damaged_json
from trimaran.engine.config import EngineConfig, PoolConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.engine.prefill_role import PrefillRole
from trimaran.engine.role import EngineRole, open_role
from trimaran.pools.key import PoolKey, new_key_text
from trimaran.pools.ticket import open_ticket, sealed

CONTEXT, STEP_ROWS = 1024, 64
LEASE = 2.0  # seconds
SLACK = 10.0  # more, on a busy machine, within which a request must have ended
TOGETHER = 8
OTHERS = (
    "cancel at the decode engine",
    "cancel at the prefill engine",
    "altered ticket",
    "wrong ticket under the right seal",
    "pages taken by another request",
    "over-long prompt",
)
RESTARTS = ("decode engine restarts on the same address", "stale ticket")
HEALTHY = "none"
WAVES, NEIGHBOURS = 5, 2


@dataclass
class Tally:
    """What came of a campaign."""

    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)  # "right tokens", or how a request failed
    wrong: list[str] = field(default_factory=list)  # what must not be

    def to_text(self) -> str:
        faults = ", ".join(f"{count} x {fault}" for fault, count in sorted(self.faults.items()))
        ends = ", ".join(f"{count} x {end}" for end, count in sorted(self.ends.items()))
        return f"{self.faults.total()} requests with a fault each: {faults}\n  ended: {ends}"


@dataclass
class _Asked:
    """A request that is under way."""

    submit: Submit
    fault: str
    turns: int  # after which the fault happens, where it is not one of the link's
    until: float
    tokens: list[int] = field(default_factory=list)
    ticket: Admitted | None = None
    end: str = ""


class Campaign:
    """Two workers that share a link, and what a server would do with them."""

    def __init__(self, seed: int = 0) -> None:
        self.tally = Tally()
        self._random = Random(seed)
        self._plans: Plans = {}
        self._key = new_key_text()
        self._listen = {"shm": f"@trimaran-chaos-{self._random.getrandbits(64):x}-{time.monotonic_ns():x}"}
        self._alone = load_engine(_config("both"))
        self._prefill, self._decode = load_engine(_config("prefill")), load_engine(_config("decode"))
        self._giving, self._taking = self._open(self._prefill, "prefill"), self._open(self._decode, "decode")
        assert isinstance(self._giving, PrefillRole)
        self._giving.transports = {"shm": FaultyTransport(self._giving.transports["shm"], self._plans)}
        self._asked: dict[str, _Asked] = {}

    def run(self, requests: int) -> Tally:
        """So many requests with a fault, ``TOGETHER`` at a time and with neighbours that have none, every kind in turn;
        those of a restart together, because it ends everything."""
        alone, restarts = cycle([*FAULTS, *OTHERS]), cycle(RESTARTS)
        wave = 0
        while (left := requests - self.tally.faults.total()) > 0:
            wave += 1
            kinds = restarts if wave % WAVES == 0 else alone
            for number in range(min(left, TOGETHER)):
                self._begin(f"w{wave}-{number}", next(kinds))
            if kinds is alone:
                for number in range(NEIGHBOURS):
                    self._begin(f"w{wave}-n{number}", HEALTHY)
            self._to_the_end()
        for role in (self._giving, self._taking):
            role.close()
        return self.tally

    def _begin(self, name: str, fault: str) -> None:
        random = self._random
        if fault != HEALTHY:
            self.tally.faults[fault] += 1
        length = CONTEXT + 1 if fault == "over-long prompt" else random.randrange(1, 500)
        prompt = [random.randrange(3)] * min(length, 80) + [random.randrange(512) for _ in range(length - 80)]
        sampling = SamplingParams(temperature=random.choice((0.0, 1.0)), seed=random.randrange(99), max_tokens=20)
        asked = _Asked(Submit(name, prompt, sampling), fault, random.randrange(1, 12), time.monotonic() + LEASE + SLACK)
        self._asked[name] = asked
        if fault in FAULTS:
            self._plans[name] = fault, random.randrange(3)
        try:
            self._taking.take(Admit(asked.submit, self._prefill.info.identity, LEASE, "prefill"))
        except RequestError as error:
            self._ended(asked, type(error).__name__)

    def _to_the_end(self) -> None:
        while any(not asked.end for asked in self._asked.values()):
            self._turn()
            for asked in [asked for asked in self._asked.values() if not asked.end]:
                asked.turns -= 1
                if asked.turns == 0:
                    self._happen(asked)
                if time.monotonic() > asked.until:
                    self._wrong(asked, "did not end within its deadline")
        until = time.monotonic() + LEASE + SLACK
        while not self._at_rest():
            if time.monotonic() > until:
                self.tally.wrong.append("pages did not come back within the lease")
                return
            self._turn()
        self._asked.clear()

    def _at_rest(self) -> bool:
        return all(
            engine.idle and not engine.leases and engine.cache.unused for engine in (self._prefill, self._decode)
        )

    def _happen(self, asked: _Asked) -> None:
        name = asked.submit.id
        match asked.fault:
            case "cancel at the decode engine":
                self._taking.cancel(name)
            case "cancel at the prefill engine":
                self._giving.cancel(name)
            case "pages taken by another request":
                self._taking.cancel(name)
                self._begin(f"{name}-heir", HEALTHY)
            case "decode engine restarts on the same address":
                self._restart()
            case "stale ticket" if asked.ticket is not None:
                self._restart()
                self._hand_over(asked, asked.ticket)

    def _restart(self) -> None:
        """As far as anybody outside can tell: a new epoch, nothing of what was."""
        self._taking.close()
        self._decode.cancel_all()
        self._taking = self._open(self._decode, "decode")

    def _turn(self) -> None:
        for engine, role in ((self._prefill, self._giving), (self._decode, self._taking)):
            engine.finish()
            engine.reap(time.monotonic())
            for message in role.turn() + engine.step():
                self._hear(engine, message)
        if all(engine.idle or engine.stalled for engine in (self._prefill, self._decode)):
            poll = select.poll()
            for descriptor in (*self._giving.filenos(), *self._taking.filenos()):
                poll.register(descriptor, select.POLLIN)
            poll.poll(5)

    def _hear(self, engine: Engine, message: FromEngine) -> None:
        assert isinstance(message, Admitted | Handed | Tokens | Failed)
        asked = self._asked.get(message.id)
        if asked is None:
            return
        match message:
            case Admitted() if asked.fault == "stale ticket" and asked.ticket is None:
                asked.ticket, asked.turns = message, 2
            case Admitted():
                self._hand_over(asked, message)
            case Tokens() if engine is self._decode:
                asked.tokens += [token.id for token in message.tokens]
                if message.finish is not None:
                    self._ended(asked, message.finish)
            case Failed():
                self._ended(asked, message.kind)
            case _:
                pass

    def _hand_over(self, asked: _Asked, admitted: Admitted) -> None:
        ticket = bytearray(admitted.ticket)
        if asked.fault == "altered ticket":
            ticket[self._random.randrange(len(ticket))] ^= 1
        elif asked.fault == "wrong ticket under the right seal":
            ticket = bytearray(self._wrong_ticket(admitted.ticket))
        sampling = structs.replace(asked.submit.sampling, seed=admitted.seed)
        try:
            self._giving.take(Prefill(structs.replace(asked.submit, sampling=sampling), bytes(ticket)))
        except TrimaranError as error:
            self._taking.cancel(asked.submit.id)
            self._ended(asked, type(error).__name__)

    def _wrong_ticket(self, right: bytes) -> bytes:
        key = PoolKey(self._key)
        values = msgspec.to_builtins(open_ticket(right, key), builtin_types=(bytes,))
        while True:
            try:
                body = msgspec.msgpack.encode(damaged_json(self._random, values))
            except OverflowError:  # a number that does not go into the format
                continue
            return sealed(body, key)

    def _ended(self, asked: _Asked, how: str) -> None:
        """A server would now answer 200 if ``how`` is a finish, and an error otherwise, or try again."""
        if asked.end:
            return
        name = asked.submit.id
        self._giving.cancel(name)  # as the server does, whoever has ended
        if how in ("stop", "length"):
            expected = self._expected(asked.submit)
            if asked.tokens != expected:
                self._wrong(asked, f"gave {asked.tokens}, not {expected}")
            how = "right tokens" if asked.fault != HEALTHY else "right tokens of a neighbour"
        elif asked.fault == HEALTHY:
            self._wrong(asked, f"failed without a fault: {how}")
        asked.end = how
        self.tally.ends[how] += 1

    def _expected(self, submit: Submit) -> list[int]:
        self._alone.submit(submit)
        tokens: list[int] = []
        while not self._alone.idle:
            for message in self._alone.step():
                assert isinstance(message, Tokens)
                tokens += [token.id for token in message.tokens]
        return tokens

    def _wrong(self, asked: _Asked, what: str) -> None:
        self.tally.wrong.append(f"{asked.fault}: a request {what}")
        asked.end = asked.end or "wrong"

    def _open(self, engine: Engine, name: str) -> EngineRole:
        until = time.monotonic() + SLACK
        while True:
            try:
                return open_role(engine, PoolConfig(name=name, key=self._key, transports=("shm",), listen=self._listen))
            except ConfigError:  # the thread that listened before is about to end
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)


def _config(role: str) -> EngineConfig:
    null = {"vocab": 512, "context": CONTEXT, "windows": [None, 100]}
    sizes = {"max_num_batched_tokens": STEP_ROWS, "max_num_seqs": 2 * TOGETHER, "kv_memory_bytes": 2**18}
    return EngineConfig.from_json({"role": role, "executor": "null", "null": null, **sizes})
