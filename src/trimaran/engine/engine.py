"""The engine: schedule, run, commit, again and again.

Two loops do the same work. The plain one waits for each step. The overlapped one starts a step and returns: while the
executor's other threads work on it, the caller sends what the step before said. Both give every request the same
tokens.
"""

import secrets
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimaran.base.errors import NumericsError, RequestError, TrimaranError
from trimaran.base.failures import failure_of
from trimaran.base.messages import Beat, Failed, FinishReason, FromEngine, Started, Submit, Token, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.engine.pages import PagePool
from trimaran.engine.plan import StepPlan
from trimaran.engine.prefix import PrefixCache
from trimaran.engine.runner import Runner
from trimaran.engine.sampling import Sampling
from trimaran.engine.scheduler import Scheduler, SchedulerLimits
from trimaran.engine.sequence import Sequence
from trimaran.kernels.step import Executor, StepOutputs


@dataclass(frozen=True, slots=True)
class Request:
    """A sequence with what decides its tokens and its end."""

    sequence: Sequence
    sampler: Any | None  # of ``Sampling``
    stops: frozenset[int]
    last: int  # tokens of prompt and output at which it ends for length


@dataclass(slots=True)
class _Counters:
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    step_seconds: float = 0.0
    executor_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Running:
    """A step that the executor has been given and that has not been committed."""

    plan: StepPlan
    started: float


class Engine:
    """Runs requests in one thread: ``submit`` and ``cancel`` between steps, ``step`` for the messages they cause.

    Sequences, pages and the page table change only while no step is running; ``submit`` touches none of them. Page
    ``i`` of the pool is page ``i`` of the executor's memory. Sequences own page references from admission until they
    leave the scheduler. A page is published by prefix only after the step that filled it has returned.
    """

    def __init__(
        self,
        executor: Executor,
        limits: SchedulerLimits,
        *,
        info: Started,
        eos_ids: frozenset[int],
        identity: bytes,
        prefix_caching: bool = True,
        seed: int | None = None,
        overlap: bool = True,
    ) -> None:
        """``identity`` names what cached pages mean (``prefix.py``); ``seed`` makes unseeded requests repeatable.

        ``overlap`` chooses between the two loops (``step``).
        """
        self.info = info
        self._executor = executor
        self._pool = PagePool(executor.num_pages[0] - 1)
        self._prefix = PrefixCache(self._pool, limits.page_size, identity, enabled=prefix_caching)
        self._scheduler = Scheduler(limits, self._pool, self._prefix)
        self._runner = Runner(
            executor,
            context=limits.context,
            max_sequences=limits.max_num_seqs,
            max_rows=limits.max_num_batched_tokens,
        )
        self._overlap = overlap
        self._running: _Running | None = None
        self._since: float | None = None  # until when the time of steps is accounted for; None while idle
        self._context = limits.context
        self._eos_ids = eos_ids
        self._keys = np.random.Generator(np.random.PCG64(secrets.randbits(128) if seed is None else seed))
        self._sampling = Sampling(executor, info.vocab)
        self._requests: dict[str, Request] = {}
        self._outbox: list[FromEngine] = []
        self._arrivals = 0
        self._counters = _Counters()

    @property
    def idle(self) -> bool:
        """True when ``step`` has nothing to do and nothing to say."""
        return not self._requests and not self._outbox

    def submit(self, message: Submit) -> None:
        """Queues a request; raises ``RequestError``, ``ContextLengthError`` or ``QueueFullError`` if it cannot."""
        request = self._admit(message)
        self._scheduler.add(request.sequence)
        self._requests[message.id] = request

    def cancel(self, request_id: str) -> None:
        """Ends a request: its pages are free on return. Unknown ids are ignored. Waits for a step that is running."""
        request = self._requests.get(request_id)
        if request is not None and request.sequence.slot is not None:
            self.finish()
            request = self._requests.get(request_id)
        if request is not None:
            self._outbox.append(self._end(request, [], "cancelled"))

    def cancel_all(self) -> None:
        for request_id in list(self._requests):
            self.cancel(request_id)

    def step(self) -> list[FromEngine]:
        """Returns the messages of one step, those of ``cancel`` first.

        The plain loop starts that step and waits for it. The overlapped loop waits for the step that the call before
        has started, and starts another one; so the first call after idleness has nothing to say yet.
        """
        self.finish()
        self._start()
        if not self._overlap:
            self.finish()
        messages, self._outbox = self._outbox, []
        return messages

    def finish(self) -> None:
        """Waits for the step that is running, if one is, and commits it; its messages come with the next ``step``.

        What is submitted then takes part in that step: whoever has waited a step need not wait another.
        """
        running, self._running = self._running, None
        if running is None:
            return
        outputs = self._runner.finish()
        assert self._since is not None
        now = time.perf_counter()
        counters = self._counters
        counters.steps += 1
        counters.step_seconds += now - self._since
        counters.executor_seconds += now - running.started
        self._since = now
        self._commit(running.plan, outputs)
        if not self._requests:
            assert self._pool.available == self._pool.total, "pages were lost"

    def stats(self) -> Beat:
        """Counters since the start and gauges of now."""
        c = self._counters
        return Beat(
            steps=c.steps,
            prompt_tokens=c.prompt_tokens,
            cached_tokens=c.cached_tokens,
            generated_tokens=c.generated_tokens,
            preemptions=self._scheduler.preemptions,
            step_seconds=c.step_seconds,
            executor_seconds=c.executor_seconds,
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            pages_free=self._pool.free,
            pages_cached=self._pool.cached,
            pages_total=self._pool.total,
        )

    def warm_up(self) -> None:
        """Produces a token the way every request does, then forgets that it did; raises what went wrong."""
        self.submit(Submit("warm-up", [0], SamplingParams(max_tokens=1, ignore_eos=True)))
        messages: list[FromEngine] = []
        while not self.idle:
            messages += self.step()
        self._counters = _Counters()
        for message in messages:
            if isinstance(message, Failed):
                raise NumericsError(f"the model cannot produce a token: {message.message}")

    def close(self) -> None:
        """Frees the executor's memory and threads; idempotent."""
        self._running = None  # the executor ends it by itself, and nobody waits for its tokens
        self._executor.close()

    def _admit(self, message: Submit) -> Request:
        sampling, vocab = message.sampling, self.info.vocab
        if message.id in self._requests:
            raise RequestError(f"a request called {message.id!r} is running already", param="id")
        if sampling.n != 1:
            raise RequestError("the engine takes one answer a request; submit n requests", param="n")
        if not message.prompt:
            raise RequestError("the prompt is empty", param="prompt")
        if min(message.prompt) < 0 or max(message.prompt) >= vocab:
            raise RequestError(f"the prompt has token ids outside 0 to {vocab - 1}", param="prompt")
        stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos_ids)
        key = int(self._keys.integers(2**64, dtype=np.uint64)) if sampling.seed is None else sampling.seed
        sampler = self._sampling.sampler(sampling, prompt=message.prompt, stops=stops, key=key)
        sequence = Sequence(
            message.id,
            message.prompt,
            sampling,
            arrival=self._arrivals,
            priority=message.priority,
            salt=message.salt,
        )
        self._arrivals += 1
        asked = self._context if sampling.max_tokens is None else len(message.prompt) + sampling.max_tokens
        return Request(sequence, sampler, stops, last=min(asked, self._context))

    def _start(self) -> None:
        """Plans a step and gives it to the executor, if there is anything to do."""
        if self._since is None:
            self._since = time.perf_counter()
        plan = self._scheduler.schedule()
        if plan.chunks:
            self._runner.start(plan, want_logits=self._wants_logits(plan))
            self._running = _Running(plan, time.perf_counter())
        else:
            assert not self._requests, "requests wait, none runs"
            self._since = None

    def _wants_logits(self, plan: StepPlan) -> bool:
        requests = self._requests
        return any(requests[chunk.sequence.id].sampler is not None for chunk in plan.chunks if chunk.samples)

    def _commit(self, plan: StepPlan, outputs: StepOutputs) -> None:
        """With ``schedule`` and ``Runner.start``, all that each sequence of each step costs in Python."""
        requests, outbox, page_size = self._requests, self._outbox, self.info.page_size
        tokens = iter(self._sampling.tokens(outputs, self._asked(plan, outputs)))
        for chunk in plan.chunks:
            sequence = chunk.sequence
            request = requests[sequence.id]
            token = None
            if chunk.samples:
                token = next(tokens)
                if token is None:
                    self._fail(request, NumericsError("the model's logits for this request are not finite"))
                    continue
            sequence.advance(chunk.rows)
            if sequence.computed - sequence.sealed >= page_size:
                self._prefix.publish(sequence)
            if token is not None:
                outbox.append(self._accept(request, token))

    def _asked(self, plan: StepPlan, outputs: StepOutputs) -> list[tuple[Any | None, int]]:
        """The samplers of the step's rows and the positions of their tokens; empty when no request has a sampler."""
        if outputs.logits is None:
            return []
        sequences = [chunk.sequence for chunk in plan.chunks if chunk.samples]
        return [(self._requests[sequence.id].sampler, sequence.total) for sequence in sequences]

    def _accept(self, request: Request, token: Token) -> Tokens:
        sequence, counters = request.sequence, self._counters
        total = len(sequence.tokens)
        counters.generated_tokens += 1
        if total == sequence.prompt_length:
            counters.prompt_tokens += total
            counters.cached_tokens += sequence.cached or 0
        if token.id in request.stops:
            return self._end(request, [], "stop", stopped_by=token.id)
        sequence.append(token.id)
        if total + 1 == request.last:
            return self._end(request, [token], "length")
        return Tokens(sequence.id, [token], None, None, sequence.cached or 0)

    def _end(
        self, request: Request, tokens: list[Token], finish: FinishReason, stopped_by: int | None = None
    ) -> Tokens:
        sequence = request.sequence
        self._drop(request)
        return Tokens(sequence.id, tokens, finish=finish, stopped_by=stopped_by, cached=sequence.cached or 0)

    def _fail(self, request: Request, error: TrimaranError) -> None:
        self._prefix.forget(request.sequence)
        self._drop(request)
        self._outbox.append(failure_of(request.sequence.id, error))

    def _drop(self, request: Request) -> None:
        self._scheduler.remove(request.sequence)
        del self._requests[request.sequence.id]
