"""Runs requests over two pools: prompts on workers that prefill, answers on workers that decode.

A request waits here until a worker of each pool has room for it, also while a pool's last worker is started anew. Then
the decode worker takes pages for its prompt, the prefill worker gets the prompt with the ticket for them, and from the
first token on everything comes from the decode worker: one stream, in one order. Each stage has a deadline.

When an attempt fails before its first token (a worker died, a transfer broke), the request has another one, under
another transfer id. After the first token there is none: what has been said cannot be taken back.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from msgspec import structs

from trimaran.base import errors
from trimaran.base.failures import error_of, failure_of
from trimaran.base.messages import BACKGROUND, Admit, Admitted, Failed, Handed, Prefill, Submit, Tokens
from trimaran.pools.affinity import page_keys
from trimaran.pools.fair import FairQueue
from trimaran.server.engine import EngineLink, Listener
from trimaran.server.pool_metrics import PoolMetrics
from trimaran.server.workers import Pool

ATTEMPTS = 3
WATCH_SECONDS = 0.1
SESSIONS = 4096  # that are remembered
ANSWER_TOKENS = 256  # that an answer is expected to have at most, for estimates
RETRY_AFTER = 1.0

log = logging.getLogger(__name__)

Said = Tokens | Failed | Admitted | Handed


@dataclass(frozen=True)
class Deadlines:
    """Seconds that a request may be in each stage before its first token."""

    queue: float  # for a worker of each pool with room
    admission: float  # for pages at the decode worker
    handoff: float  # for the prompt to be computed and taken


class Stage(Enum):
    """Of an attempt."""

    ADMISSION = "waiting for pages at the decode worker"
    HANDOFF = "waiting for its prompt to be computed and handed over"
    DECODING = "decoding"
    OVER = "over"


@dataclass(eq=False)
class _Routed:
    """A request."""

    request: Submit
    listener: Listener[Tokens | Failed]
    keys: list[bytes]  # of the pages of its prompt
    until: float  # when it must have left the queue
    attempts: int = 0
    attempt: "_Attempt | None" = None  # None: it is queued


@dataclass(eq=False)
class _Attempt:
    """An attempt to answer a request, by two workers."""

    routed: _Routed
    transfer: str  # its id with both
    prefill: int
    decode: int
    until: float  # of the stage
    stage: Stage = Stage.ADMISSION


class _Ear:
    """Hears what one worker says of one attempt."""

    def __init__(
        self,
        attempt: _Attempt,
        heard: Callable[[_Attempt, list[Said]], None],
        lost: Callable[[_Attempt, errors.TrimaranError], None],
    ) -> None:
        self._attempt, self._heard, self._lost = attempt, heard, lost

    def hear(self, messages: list[Said]) -> None:
        self._heard(self._attempt, messages)

    def fail(self, error: errors.TrimaranError) -> None:
        if self._attempt.stage is not Stage.OVER:
            self._lost(self._attempt, error)


class Router:
    """See the module's text; the contract is that of ``Backend``. ``stop`` comes last."""

    def __init__(self, prefill: Pool, decode: Pool, deadlines: Deadlines, metrics: PoolMetrics) -> None:
        self.lost: asyncio.Future[errors.TrimaranError] = asyncio.get_running_loop().create_future()
        self.prefill = prefill
        self.decode = decode
        self._deadlines = deadlines
        self._metrics = metrics
        self._page_size = decode.workers[0].started.page_size
        self._routed: dict[str, _Routed] = {}
        self._queue: FairQueue[_Routed] = FairQueue()
        self._sessions: OrderedDict[str, tuple[int, int]] = OrderedDict()
        for pool in (prefill, decode):
            for number, worker in enumerate(pool.workers):
                worker.link.changed = partial(self._changed, pool, number)
                worker.link.lost.add_done_callback(partial(self._gone, pool))
        self._watching = asyncio.create_task(self._watch())

    def submit(self, requests: Iterable[Submit], listener: Listener[Tokens | Failed]) -> None:
        for pool in (self.prefill, self.decode):
            if not pool.worth_waiting():
                raise errors.EngineDiedError(pool.trouble() or f"the {pool.role} pool has no worker")
        until = time.monotonic() + self._deadlines.queue
        for request in requests:
            keys = page_keys(request.prompt, self._page_size, request.salt)
            routed = self._routed[request.id] = _Routed(request, listener, keys, until)
            self._queue.push(routed, request.tenant, len(request.prompt), request.priority)
        self._dispatch()

    def submit_to(self, request: Submit, listener: Listener[Tokens | Failed], prefill: int, decode: int) -> None:
        """As ``submit``, by the workers of these numbers at the first attempt."""
        keys = page_keys(request.prompt, self._page_size, request.salt)
        routed = self._routed[request.id] = _Routed(request, listener, keys, 0.0)
        self._attempt(routed, prefill, decode)

    @property
    def links(self) -> list[EngineLink]:
        """Those to all workers."""
        return [worker.link for pool in (self.prefill, self.decode) for worker in pool.workers]

    def cancel(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            if routed := self._routed.pop(id_, None):
                self._leave(routed)
        self._dispatch()

    def trouble(self) -> str | None:
        return self.prefill.trouble() or self.decode.trouble()

    async def stop(self, deadline: float) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, *(link.stop(deadline) for link in self.links), return_exceptions=True)

    def _dispatch(self) -> None:
        """Starts attempts in order, as long as the first in the queue finds a worker of each pool."""
        while (routed := self._queue.peek()) is not None:
            request = routed.request
            last = self._sessions.get(request.session, (None, None)) if request.session else (None, None)
            behind = request.priority >= BACKGROUND
            prefill = self.prefill.choose(len(request.prompt), routed.keys, last[0], background=behind)
            decode = self.decode.choose(_context(request), routed.keys, last[1], background=behind)
            if prefill is None or decode is None:
                break
            self._queue.remove(routed)
            self._attempt(routed, prefill, decode)
        self._metrics.queued.set(len(self._queue))

    def _attempt(self, routed: _Routed, prefill: int, decode: int) -> None:
        request = routed.request
        routed.attempts += 1
        transfer = request.id if routed.attempts == 1 else f"{request.id}~{routed.attempts}"
        until = time.monotonic() + self._deadlines.admission
        attempt = routed.attempt = _Attempt(routed, transfer, prefill, decode, until)
        origin = self.prefill.workers[prefill].started.identity
        behind = request.priority >= BACKGROUND
        self.prefill.take(prefill, transfer, len(request.prompt), background=behind)
        self.decode.take(decode, transfer, _context(request), background=behind)
        admit = Admit(
            structs.replace(request, id=transfer), origin, self._deadlines.handoff, self.prefill.name_of(prefill)
        )
        ear = _Ear(attempt, self._decode_said, self._attempt_failed)
        self.decode.workers[decode].link.submit([admit], ear)

    def _decode_said(self, attempt: _Attempt, messages: list[Said]) -> None:
        routed = attempt.routed
        heard: list[Tokens | Failed] = []
        for message in messages if attempt.stage is not Stage.OVER else ():
            match message:
                case Admitted():
                    self._hand_over(attempt, message)
                case Tokens():
                    if attempt.stage is not Stage.DECODING:
                        self._begin(attempt)
                    if attempt.transfer != routed.request.id:
                        message = structs.replace(message, id=routed.request.id)
                    heard.append(message)
                case Failed() if attempt.stage is Stage.DECODING:
                    heard.append(structs.replace(message, id=routed.request.id))
                case Failed():
                    self._attempt_failed(attempt, error_of(message))
        if heard and (isinstance(heard[-1], Failed) or heard[-1].finish is not None):
            del self._routed[routed.request.id]
            self._leave(routed)
            self._dispatch()
        if heard:
            routed.listener.hear(heard)

    def _hand_over(self, attempt: _Attempt, admitted: Admitted) -> None:
        """The decode worker has pages for the prompt: the prefill worker may begin."""
        attempt.stage = Stage.HANDOFF
        attempt.until = time.monotonic() + self._deadlines.handoff + WATCH_SECONDS
        request = attempt.routed.request
        sampling = structs.replace(request.sampling, seed=admitted.seed)
        prefill = Prefill(structs.replace(request, id=attempt.transfer, sampling=sampling), admitted.ticket)
        try:
            ear = _Ear(attempt, self._prefill_said, self._prefill_lost)
            self.prefill.workers[attempt.prefill].link.submit([prefill], ear)
        except errors.EngineDiedError as error:
            self._attempt_failed(attempt, error)

    def _begin(self, attempt: _Attempt) -> None:
        """The first token has come."""
        attempt.stage = Stage.DECODING
        request = attempt.routed.request
        self.decode.remember(attempt.decode, attempt.routed.keys)
        if request.session:
            self._sessions[request.session] = attempt.prefill, attempt.decode
            self._sessions.move_to_end(request.session)
            if len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)

    def _prefill_said(self, attempt: _Attempt, messages: list[Said]) -> None:
        for message in messages:
            match message:
                case Handed():
                    self.prefill.give_back(attempt.prefill, attempt.transfer)
                    self.prefill.remember(attempt.prefill, attempt.routed.keys)
                    self._metrics.handed(message)
                    self._dispatch()
                case Failed() if attempt.stage is Stage.HANDOFF:
                    self._attempt_failed(attempt, error_of(message))

    def _prefill_lost(self, attempt: _Attempt, error: errors.TrimaranError) -> None:
        """The prefill worker has died, which no longer matters once the decode worker has begun."""
        self.prefill.give_back(attempt.prefill, attempt.transfer)
        if attempt.stage is not Stage.DECODING:
            self._attempt_failed(attempt, error)

    def _attempt_failed(self, attempt: _Attempt, error: errors.TrimaranError) -> None:
        """Tries anew, before anybody has heard a token; else, or when that is of no use, the request has failed."""
        routed = attempt.routed
        begun = attempt.stage is Stage.DECODING
        self._leave(routed)
        if begun:
            del self._routed[routed.request.id]
            routed.listener.fail(error)
        elif isinstance(error, _PASSING) and routed.attempts < ATTEMPTS:
            log.warning("attempt %d of a request failed: %s", routed.attempts, error)
            self._metrics.retries.labels(type(error).__name__).inc()
            routed.until = time.monotonic() + self._deadlines.queue
            self._queue.push_back(routed, routed.request.priority)
        else:
            self._end(routed, errors.EngineDiedError(str(error)) if isinstance(error, _PASSING) else error)
        self._dispatch()

    def _leave(self, routed: _Routed) -> None:
        """Takes a request off its workers, or out of the queue."""
        attempt, routed.attempt = routed.attempt, None
        if attempt is None:
            self._queue.remove(routed)
            return
        stage, attempt.stage = attempt.stage, Stage.OVER
        for pool, worker in ((self.decode, attempt.decode), (self.prefill, attempt.prefill)):
            pool.give_back(worker, attempt.transfer)
            if pool is self.decode or stage is not Stage.DECODING:  # else the prefill worker has done, and says so
                pool.workers[worker].link.cancel([attempt.transfer])

    def _end(self, routed: _Routed, error: errors.TrimaranError) -> None:
        del self._routed[routed.request.id]
        routed.listener.hear([failure_of(routed.request.id, error)])

    def _changed(self, pool: Pool, number: int) -> None:
        """A worker's process has ended or is not trusted any more, or there is a new one."""
        link = pool.workers[number].link
        if not link.up:
            pool.forget(number)
        if link.deviated and pool is self.prefill:
            for worker in self.decode.workers:
                worker.link.distrust(pool.name_of(number))
        self._dispatch()

    def _gone(self, pool: Pool, lost: asyncio.Future[errors.TrimaranError]) -> None:
        """A worker will not come back; without any the pool, and with it everything, is lost."""
        if not lost.cancelled() and all(worker.link.lost.done() for worker in pool.workers) and not self.lost.done():
            self.lost.set_result(lost.result())

    async def _watch(self) -> None:
        """Ends what is past its stage's deadline."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            for routed in list(self._routed.values()):
                attempt = routed.attempt
                if attempt is None and now > routed.until:
                    self._queue.remove(routed)
                    self._end(routed, self._too_late())
                elif attempt is not None and attempt.stage is not Stage.DECODING and now > attempt.until:
                    self._attempt_failed(attempt, errors.TransferError(f"a request was too long {attempt.stage.value}"))
            for pool in (self.prefill, self.decode):
                for number, worker in enumerate(pool.workers):
                    self._metrics.load.labels(pool.role, str(number)).set(worker.tokens)
            self._dispatch()

    def _too_late(self) -> errors.TrimaranError:
        if trouble := self.trouble():
            return errors.EngineDiedError(trouble)
        text = f"no worker had room for the request within {self._deadlines.queue:g} s"
        return errors.QueueFullError(text, retry_after=RETRY_AFTER)


# What may not happen to another attempt.
_PASSING = (
    errors.TransferError,
    errors.EngineDiedError,
    errors.CanaryError,
    errors.PageIntegrityError,
    errors.QueueFullError,
)


def _context(request: Submit) -> int:
    """Tokens that a request is expected to hold at the decode worker."""
    wanted = request.sampling.max_tokens
    return len(request.prompt) + min(ANSWER_TOKENS if wanted is None else wanted, ANSWER_TOKENS)
