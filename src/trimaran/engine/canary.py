"""The canary: a prompt whose logits are known, run again and again through the engine that serves.

Weights may change in memory while they are used, by a fault of the machine or a bug that writes where it must not, and
every answer would be plausible still. What a row of logits is depends on its sequence alone, bit for bit, whatever
runs beside it; so one digest, taken once, tells for as long as the engine lives. The canary is an ordinary sequence
with pages of its own: nothing of it is found in the prefix cache, and nothing is left there. An encoder makes a vector
of it, as of any text.

What it cannot see: a weight that its prompt does not meet (other rows of the embedding, experts that it is not routed
to), and a change so small that rounding takes it back.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Iterator
from typing import Protocol

import msgspec

from trimaran.base.errors import CanaryError, NumericsError, QueueFullError
from trimaran.base.failures import failure_of
from trimaran.base.messages import Beat, Deviated, Embed, Embedded, Failed, FromEngine, Started, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.engine.encoder import Encoder
from trimaran.engine.engine import Engine
from trimaran.engine.known_answer import KnownAnswer

PROMPT, OUTPUT = 20, 2  # tokens, where the context has room: more than a page, and a step of one row

_NOTHING = ""  # what a run comes to that says nothing
_ID = "(canary)"  # no request of a server's is called so
_FIRST = -(2**62)  # it waits for nobody, or it would not run while all places are taken

_CAUSE = (
    "the canary, a prompt whose logits are known, came out otherwise than before: weights in memory have changed, or "
    "the machine computes wrongly; nothing is served until the engine is started again"
)
_DOUBT = "memory or processor of this machine cannot be trusted"

log = logging.getLogger(__name__)


class Canary:
    """Checks ``engine`` every ``interval`` seconds against ``answer``, which ``prove`` has given. The loop that runs
    the engine calls ``turn`` before each step, and ``sift`` with what it says."""

    def __init__(self, engine: Engine | Encoder, answer: str, interval: float) -> None:
        self._engine = engine
        self._answer = answer
        self._interval = interval
        self._due = time.monotonic() + interval
        self._run: _Run | None = None  # that is under way
        self.checks = 0
        self.deviations = 0

    def turn(self, now: float) -> None:
        """Starts a run when one is due at ``now`` (of ``time.monotonic``). Between two steps."""
        if now < self._due or self._run is not None or self.deviations:
            return
        self._due = now + self._interval
        try:
            self._run = _begin(self._engine)
        except QueueFullError:
            self._due = now  # once there is room

    def sift(self, messages: list[FromEngine]) -> list[FromEngine]:
        """``messages`` without the canary's own. If it came out otherwise, all requests end with ``CanaryError``, as do
        those that come later, and ``Deviated`` says so; what has not been sent of answers is withheld."""
        run, others, found = self._run, list[FromEngine](), None
        if run is None:
            return messages
        for message in messages:
            if isinstance(message, Tokens | Embedded | Failed) and message.id == _ID:
                found = run.hear(message)
            else:
                others.append(message)
        if found is None:
            return others
        self._run = None
        if found == _NOTHING:
            return others
        self.checks += 1
        return others if found == self._answer else self._deviate(found, others)

    def stats(self) -> Beat:
        """The engine's, and how many runs there were."""
        return msgspec.structs.replace(
            self._engine.stats(), canary_checks=self.checks, canary_deviations=self.deviations
        )

    def _deviate(self, found: str, unsent: list[FromEngine]) -> list[FromEngine]:
        self.deviations += 1
        log.critical("canary deviated: model=%s expected=%s found=%s", self._engine.info.model, self._answer, found)
        error = CanaryError(_CAUSE)
        self._engine.give_up(error)
        unsent += self._engine.step()
        return [Deviated(_CAUSE, expected=self._answer, found=found), *_withheld(unsent, error)]


class Unwatched:
    """In a canary's place where none runs."""

    def __init__(self, engine: Engine | Encoder) -> None:
        self._engine = engine

    def turn(self, now: float) -> None:
        pass

    def sift(self, messages: list[FromEngine]) -> list[FromEngine]:
        return messages

    def stats(self) -> Beat:
        return self._engine.stats()


def _withheld(messages: list[FromEngine], error: CanaryError) -> Iterator[FromEngine]:
    """Without what answers say; those that are complete end with ``error`` like the others."""
    for message in messages:
        match message:
            case Tokens(finish=None):
                pass
            case Tokens(finish="stop" | "length") | Embedded():
                yield failure_of(message.id, error)
            case _:
                yield message


def prove(engine: Engine | Encoder, known: KnownAnswer | None) -> str:
    """The digest of the canary's logits, while nothing else runs: what an earlier start has found, if ``known`` has it.

    Otherwise it is measured twice, and kept there. Raises ``CanaryError`` when two digests differ.
    """
    found = _measure(engine)
    before = None if known is None else known.read()
    if before is None:
        if (again := _measure(engine)) != found:
            raise CanaryError(f"one prompt, run twice, gave other logits ({found} and {again}): {_DOUBT}")
        if known is not None:
            known.write(found)
    elif before != found:
        assert known is not None
        raise CanaryError(
            f"the canary's logits are {found}; an earlier start with the same weights, formats and code found "
            f"{before}: {_DOUBT}. If you know better, delete {known.path}"
        )
    engine.forget_counts()
    return found


def _measure(engine: Engine | Encoder) -> str:
    run, found = _begin(engine), None
    while found is None:
        for message in engine.step():
            if isinstance(message, Failed):
                raise NumericsError(f"the canary's prompt cannot be run: {message.message}")
            assert isinstance(message, Tokens | Embedded), message
            found = run.hear(message)
    return found


class _Run(Protocol):
    """A run that is under way."""

    def hear(self, message: Tokens | Embedded | Failed) -> str | None:
        """What it has come to, once it is over: a digest, an error, or ``_NOTHING`` when that says nothing."""
        ...


def _begin(engine: Engine | Encoder) -> _Run:
    """Raises ``QueueFullError``."""
    return _Vector(engine) if isinstance(engine, Encoder) else _Text(engine)


class _Text:
    """Takes the digest of all rows of logits. It draws no seed, or others would get another one."""

    def __init__(self, engine: Engine) -> None:
        output = min(OUTPUT, engine.info.context - 1)
        prompt = _prompt(engine.info)[: engine.info.context - output]
        sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, seed=0)
        self._sha = hashlib.sha256()
        engine.submit(
            Submit(_ID, prompt, sampling, _FIRST, salt=f"canary {secrets.token_hex(16)}"),
            look=lambda logits: self._sha.update(logits.tobytes()),
        )

    def hear(self, message: Tokens | Embedded | Failed) -> str | None:
        match message:
            case Tokens(finish=None):
                return None
            case Tokens(finish="cancelled") | Failed(kind="PageIntegrityError"):
                return _NOTHING  # a page fault has been reported as what it is
            case Failed():
                return f"{message.kind}: {message.message}"
        return self._sha.hexdigest()


class _Vector:
    """Takes the digest of a text's vector."""

    def __init__(self, encoder: Encoder) -> None:
        prompt = _prompt(encoder.info)[: encoder.info.context]
        encoder.submit(Embed(_ID, [prompt], seconds=None if encoder.info.score is None else [len(prompt) // 2]))

    def hear(self, message: Tokens | Embedded | Failed) -> str | None:
        if isinstance(message, Embedded):
            return hashlib.sha256(message.vectors).hexdigest()
        assert isinstance(message, Failed), message
        return f"{message.kind}: {message.message}"


def _prompt(info: Started) -> list[int]:
    """The same tokens for every model of a vocabulary."""
    return [position * 2654435761 % 2**32 * info.vocab >> 32 for position in range(1, PROMPT + 1)]
