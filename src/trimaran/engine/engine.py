"""The engine: one plain loop over receive, schedule, run, sample, commit, send."""

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


class Engine:
    """Runs requests in one thread: ``submit`` and ``cancel`` between steps, ``step`` for the messages they cause.

    Page ``i`` of the pool is page ``i`` of the executor's memory. Sequences own page references from admission until
    they leave the scheduler. A page is published by prefix only after the step that filled it has returned.
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
    ) -> None:
        """``identity`` names what cached pages mean (``prefix.py``); ``seed`` makes unseeded requests repeatable."""
        self.info = info
        self._executor = executor
        self._pool = PagePool(executor.num_pages - 1)
        self._prefix = PrefixCache(self._pool, limits.page_size, identity, enabled=prefix_caching)
        self._scheduler = Scheduler(limits, self._pool, self._prefix)
        self._runner = Runner(
            executor,
            context=limits.context,
            max_sequences=limits.max_num_seqs,
            max_rows=limits.max_num_batched_tokens,
        )
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
        """Ends a request at once: its pages are free on return. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._outbox.append(self._end(request, [], "cancelled"))

    def cancel_all(self) -> None:
        for request_id in list(self._requests):
            self.cancel(request_id)

    def step(self) -> list[FromEngine]:
        """Runs one step and returns the messages it caused, those of ``cancel`` first."""
        began = time.perf_counter()
        plan = self._scheduler.schedule()
        if plan.chunks:
            outputs = self._runner.run(plan, want_logits=self._wants_logits(plan))
            self._commit(plan, outputs)
            self._counters.steps += 1
            self._counters.step_seconds += time.perf_counter() - began
        else:
            assert not self._requests, "requests wait, none runs"
        if not self._requests:
            assert self._pool.available == self._pool.total, "pages were lost"
        messages, self._outbox = self._outbox, []
        return messages

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
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            pages_free=self._pool.free,
            pages_cached=self._pool.cached,
            pages_total=self._pool.total,
        )

    def warm_up(self) -> None:
        """Produces a token the way every request does, then forgets that it did; raises what went wrong."""
        self.submit(Submit("warm-up", [0], SamplingParams(max_tokens=1, ignore_eos=True)))
        messages = self.step()
        self._counters = _Counters()
        for message in messages:
            if isinstance(message, Failed):
                raise NumericsError(f"the model cannot produce a token: {message.message}")

    def close(self) -> None:
        """Frees the executor's memory and threads; idempotent."""
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

    def _wants_logits(self, plan: StepPlan) -> bool:
        return any(self._requests[chunk.sequence.id].sampler is not None for chunk in plan.chunks if chunk.samples)

    def _commit(self, plan: StepPlan, outputs: StepOutputs) -> None:
        sampling = [chunk.sequence for chunk in plan.chunks if chunk.samples]
        tokens = iter(self._sampling.tokens(outputs, [(self._requests[s.id].sampler, s.total) for s in sampling]))
        for chunk in plan.chunks:
            sequence = chunk.sequence
            request = self._requests[sequence.id]
            token = None
            if chunk.samples:
                token = next(tokens)
                if token is None:
                    self._fail(request, NumericsError("the model's logits for this request are not finite"))
                    continue
            sequence.advance(chunk.rows)
            self._prefix.publish(sequence)
            if token is not None:
                self._outbox.append(self._accept(request, token))

    def _accept(self, request: Request, token: Token) -> Tokens:
        sequence = request.sequence
        self._counters.generated_tokens += 1
        if not sequence.output_length:
            self._counters.prompt_tokens += sequence.prompt_length
            self._counters.cached_tokens += sequence.cached or 0
        if token.id in request.stops:
            return self._end(request, [], "stop", stopped_by=token.id)
        sequence.append(token.id)
        if sequence.total == request.last:
            return self._end(request, [token], "length")
        return Tokens(sequence.id, [token], cached=sequence.cached or 0)

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
