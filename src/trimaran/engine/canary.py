"""The canary: a prompt whose logits are known, run again and again through the engine that serves.

Weights may change in memory while they are used, by a fault of the machine or a bug that writes where it must not, and
every answer would be plausible still. What a row of logits is depends on its sequence alone, bit for bit, whatever
runs beside it; so one digest, taken once, tells for as long as the engine lives. The canary is an ordinary sequence
with pages of its own: nothing of it is found in the prefix cache, and nothing is left there.

What it cannot see: a weight that its prompt does not meet (other rows of the embedding, experts that it is not routed
to), and a change so small that rounding takes it back.
"""

import hashlib
import logging
import secrets
import time

import msgspec

from trimaran.base.errors import CanaryError, NumericsError, QueueFullError
from trimaran.base.messages import Beat, Deviated, Failed, FromEngine, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.engine.engine import Engine
from trimaran.engine.known_answer import KnownAnswer
from trimaran.kernels.step import Float32

PROMPT, OUTPUT = 20, 2  # tokens, where the context has room: more than a page, and a step of one row

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

    def __init__(self, engine: Engine, answer: str, interval: float) -> None:
        self._engine = engine
        self._answer = answer
        self._interval = interval
        self._due = time.monotonic() + interval
        self._look: _Look | None = None  # of the run that is under way
        self.checks = 0
        self.deviations = 0

    def turn(self, now: float) -> None:
        """Starts a run when one is due at ``now`` (of ``time.monotonic``). Between two steps."""
        if now < self._due or self._look is not None or self.deviations:
            return
        self._due = now + self._interval
        look = _Look()
        try:
            self._engine.submit(_prompt(self._engine), look=look)
        except QueueFullError:
            self._due = now  # once there is room
        else:
            self._look = look

    def sift(self, messages: list[FromEngine]) -> list[FromEngine]:
        """``messages`` without the canary's own. If it came out otherwise, all requests end with ``CanaryError``, as do
        those that come later, and ``Deviated`` says so."""
        if self._look is None:
            return messages
        others: list[FromEngine] = []
        for message in messages:
            if isinstance(message, Tokens | Failed) and message.id == _ID:
                others += self._hear(message, self._look)
            else:
                others.append(message)
        return others

    def stats(self) -> Beat:
        """The engine's, and how many runs there were."""
        return msgspec.structs.replace(
            self._engine.stats(), canary_checks=self.checks, canary_deviations=self.deviations
        )

    def _hear(self, message: Tokens | Failed, look: "_Look") -> list[FromEngine]:
        match message:
            case Tokens(finish=None):
                return []
            case Tokens(finish="cancelled") | Failed(kind="PageIntegrityError"):
                self._look = None  # it says nothing; a page fault has been reported as what it is
                return []
            case Tokens():
                found = look.digest
            case Failed():
                found = f"{message.kind}: {message.message}"
        self._look = None
        self.checks += 1
        return [] if found == self._answer else [self._deviate(found)]

    def _deviate(self, found: str) -> Deviated:
        self.deviations += 1
        log.critical("canary deviated: model=%s expected=%s found=%s", self._engine.info.model, self._answer, found)
        self._engine.give_up(CanaryError(_CAUSE))
        return Deviated(_CAUSE, expected=self._answer, found=found)


def prove(engine: Engine, known: KnownAnswer | None) -> str:
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


class _Look:
    """Takes the digest of each row of logits that it is shown."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def __call__(self, logits: Float32) -> None:
        self._sha.update(logits.tobytes())

    @property
    def digest(self) -> str:
        return self._sha.hexdigest()


def _measure(engine: Engine) -> str:
    look = _Look()
    engine.submit(_prompt(engine), look=look)
    while not engine.idle:
        for message in engine.step():
            if isinstance(message, Failed):
                raise NumericsError(f"the canary's prompt gives no token: {message.message}")
    return look.digest


def _prompt(engine: Engine) -> Submit:
    """The same tokens for every model of a vocabulary. It draws no seed, or others would get another one."""
    output = min(OUTPUT, engine.info.context - 1)
    vocab = engine.info.vocab
    prompt = [position * 2654435761 % 2**32 * vocab >> 32 for position in range(1, PROMPT + 1)]
    sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, seed=0)
    return Submit(_ID, prompt[: engine.info.context - output], sampling, _FIRST, salt=f"canary {secrets.token_hex(16)}")
