"""The engine: schedule, run, commit, again and again.

Two loops do the same work. The plain one waits for each step. The overlapped one starts a step and returns: while the
executor's other threads work on it, the caller sends what the step before said. Both give every request the same
tokens.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from msgspec import structs

from trimaran.base.errors import NumericsError, PageIntegrityError, TrimaranError
from trimaran.base.failures import failure_of
from trimaran.base.formats import CacheGroup
from trimaran.base.messages import (
    Beat,
    FinishReason,
    FromEngine,
    Started,
    Submit,
    Token,
    Tokens,
)
from trimaran.engine.cache import KVCache
from trimaran.engine.choosing import Choosing, Question
from trimaran.engine.constraints.constraints import Constraints
from trimaran.engine.constraints.matcher import Matcher
from trimaran.engine.constraints.tokens import TokenTable
from trimaran.engine.faults import PageFaults
from trimaran.engine.handover import Handover
from trimaran.engine.leases import Leases
from trimaran.engine.limits import SchedulerLimits
from trimaran.engine.parking import Parking
from trimaran.engine.plan import StepPlan
from trimaran.engine.request import Look, Reception, Request
from trimaran.engine.runner import Runner
from trimaran.engine.sampling import Sampling
from trimaran.engine.scheduler import Scheduler
from trimaran.engine.sequence import Sequence
from trimaran.kernels.page_tags import PageFault
from trimaran.kernels.step import Executor, StepOutputs

_NOT_ITS_OWN = "a page of this request's cache was not its own; the request was ended, try again"
_NOT_FINITE = "the model's logits for this request are not finite"


@dataclass(slots=True)
class _Counters:  # named as in ``Beat``
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    step_seconds: float = 0.0
    executor_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Running:
    """A step that the executor has been given and that has not been committed."""

    plan: StepPlan
    started: float
    question: Question


class Engine:
    """Runs requests in one thread: ``submit`` and ``cancel`` between steps, ``step`` for the messages they cause.

    Sequences, pages and page tables change only while no step is running; ``submit`` touches none of them. Sequences
    own page references from admission until they leave the scheduler. A page is published by prefix only after the step
    that filled it has returned, and given back, where a window has passed it, only after the step that did so has.
    """

    def __init__(
        self,
        executor: Executor,
        groups: tuple[CacheGroup, ...],
        limits: SchedulerLimits,
        *,
        info: Started,
        eos_ids: frozenset[int],
        identity: bytes,
        prefix_caching: bool = True,
        seed: int | None = None,
        overlap: bool = True,
        parking: bool = False,
        token_table: Callable[[], TokenTable] | None = None,
        draft_tokens: int = 0,
    ) -> None:
        """``groups`` are those of the executor's program, ``identity`` names what cached pages mean (``prefix.py``).

        ``seed`` makes unseeded requests repeatable; ``overlap`` chooses between the two loops (``step``). ``parking``:
        what gives up its pages is copied and not computed again. ``token_table`` reads the vocabulary when a request
        first comes with a grammar; without, such are refused. ``draft_tokens``: see ``drafts.py``; 0: none.
        """
        self.info = info
        self._limits = limits
        self._at_close: list[Callable[[], None]] = []
        self._executor = executor
        windows = tuple(group.window for group in groups)
        self._cache = KVCache(
            windows,
            executor.num_pages,
            limits,
            identity,
            prefix_caching=prefix_caching,
            page_tags=executor.page_tags,
        )
        self._faults = PageFaults(self._cache.groups)
        self.leases = Leases(self._cache.groups)
        self.handover = Handover(executor, self._cache.groups, self.leases, self._faults)
        parked = Parking(executor, self._cache, self.handover) if parking else None
        self._scheduler = Scheduler(limits, self._cache, parked)
        self.runner = Runner(
            executor,
            self._cache.tables,
            self._cache.expected,
            windows,
            max_sequences=limits.max_num_seqs,
            max_rows=limits.max_num_batched_tokens,
        )
        self._overlap = overlap
        self._running: _Running | None = None
        self._stirred = True  # since the last time that there was no step to plan
        self._since: float | None = None  # until when the time of steps is accounted for; None while idle
        sampling = Sampling(executor, info.vocab)
        self._reception = Reception(
            sampling,
            vocab=info.vocab,
            context=limits.context,
            eos_ids=eos_ids,
            seed=seed,
            draft_tokens=draft_tokens,
        )
        self._drafts = draft_tokens > 0
        self.constraints = Constraints(info.vocab, limits.max_num_seqs, executor.threads, token_table)
        self.choosing = Choosing(sampling, self.constraints)
        self._requests: dict[str, Request] = {}
        self._given_up: TrimaranError | None = None
        self._outbox: list[FromEngine] = []
        self._counters = _Counters()

    @property
    def executor(self) -> Executor:
        """What runs the steps."""
        return self._executor

    @property
    def cache(self) -> KVCache:
        """The books of all pages, for those who look into a live engine; they change only between two steps."""
        return self._cache

    @property
    def sequences(self) -> list[Sequence]:
        """All requests' sequences, in the order in which they came."""
        return [request.sequence for request in self._requests.values()]

    @property
    def slots(self) -> int:
        """Most sequences that have pages at once."""
        return self._limits.max_num_seqs

    @property
    def idle(self) -> bool:
        """True when ``step`` has nothing to do and nothing to say."""
        return not self._requests and not self._outbox

    @property
    def stalled(self) -> bool:
        """True when requests wait for what only comes from outside: for pages that leases keep, or that are being
        filled. Steps do nothing until it has come."""
        return not self._stirred and bool(self._requests) and not self.constraints.waiting

    def submit(self, message: Submit, *, look: Look | None = None) -> None:
        """Queues a request; raises ``RequestError``, ``ContextLengthError`` or ``QueueFullError`` if it cannot.

        ``look`` is shown the logits of each of its tokens; nobody finds the pages of such a request.
        """
        request = self._reception.take(message, self._requests)
        if look is not None:
            request.look, request.drafter = look, None
        self._add(request)

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

    def give_up(self, error: TrimaranError) -> None:
        """Ends all requests with ``error``, and those that come later. Waits for a step that is running."""
        self.finish()
        self._given_up = error
        for request in list(self._requests.values()):
            self._fail(request, error)

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
        self.choosing.mask(running.question)
        outputs = self.runner.finish()
        assert self._since is not None
        now = time.perf_counter()
        counters = self._counters
        counters.steps += 1
        counters.step_seconds += now - self._since
        counters.executor_seconds += now - running.started
        self._since = now
        self._commit(running, outputs)
        self._settle_books()

    def reap(self, now: float) -> list[str]:
        """Ends the leases that are over at ``now`` (of ``time.monotonic``) and names them. Between two steps; call it
        when there is nothing to do too, or pages stay taken."""
        ended = self.leases.expire(now)
        if ended:
            self._stirred = True
            self._settle_books()
        return ended

    def stats(self) -> Beat:
        """Counters since the start and gauges of now."""
        return Beat(
            **asdict(self._counters),
            **asdict(self.constraints.counters()),
            page_faults=self._faults.count,
            leases=len(self.leases),
            leases_expired=self.leases.expired,
            preemptions=self._scheduler.preemptions,
            running=len(self._scheduler.running),
            waiting=self._scheduler.waiting,
            pages=self._cache.usage(self._scheduler.running),
        )

    def forget_counts(self) -> None:
        """Counts from zero again, as if nothing had run."""
        self._counters = _Counters()

    def at_close(self, callback: Callable[[], None]) -> None:
        """Has ``callback`` called once, before the executor's memory goes."""
        self._at_close.append(callback)

    def close(self) -> None:
        """Frees the executor's memory and threads; idempotent."""
        while self._at_close:
            self._at_close.pop()()
        self._running = None  # the executor ends it by itself, and nobody waits for its tokens
        self.constraints.close()
        self._executor.close()

    def _start(self) -> None:
        """Plans a step and gives it to the executor, if there is anything to do."""
        if self._since is None:
            self._since = time.perf_counter()
        if self.constraints.waiting:
            self._take_matchers()
        if self._drafts:
            self._draft()
        plan = self._scheduler.schedule()
        for sequence in plan.spoilt:
            self._fail(self._requests[sequence.id], PageIntegrityError(_NOT_ITS_OWN))
        self._stirred = bool(plan.chunks)
        if plan.chunks:
            question = self.choosing.ask(
                [self._requests[c.sequence.id] for c in plan.chunks if c.samples for _ in range(1 + len(c.draft))]
            )
            self.runner.start(plan, want_logits=bool(question.asked))
            self._running = _Running(plan, time.perf_counter(), question)
        else:
            self._since = None
            if self.constraints.waiting and not self._outbox:
                self.constraints.nap()
            for_others = self.constraints.waiting or self.leases or self._scheduler.arriving
            assert not self._requests or for_others, "requests wait, none runs"
        for sequence in plan.arriving:
            self._expect(sequence)

    def _take_matchers(self) -> None:
        """Lets in the requests whose constraint is ready, and ends those that cannot have theirs."""
        for request_id, outcome in self.constraints.arrived():
            request = self._requests[request_id]
            if isinstance(outcome, Matcher):
                request.matcher = outcome
                self._scheduler.release(request.sequence)
            else:
                self._fail(request, outcome)

    def _commit(self, running: _Running, outputs: StepOutputs) -> None:
        """With ``schedule`` and ``Runner.start``, all that each sequence of each step costs in Python."""
        plan, requests, outbox = running.plan, self._requests, self._outbox
        faulty = self._faults_of(plan) if outputs.faulty else {}
        tokens = iter(self.choosing.answer(running.question, outputs))
        for chunk in plan.chunks:
            sequence = chunk.sequence
            request = requests[sequence.id]
            token, drafted = None, []
            if chunk.samples:
                token = next(tokens)
                drafted = [next(tokens) for _ in chunk.draft]
            if sequence in faulty:
                self._abandon(request, faulty[sequence])
                continue
            if request.matcher is not None and request.matcher.error is not None:
                self._fail(request, request.matcher.error)
                continue
            if chunk.draft:
                self._commit_draft(request, chunk.draft, [token, *drafted])
                continue
            if chunk.samples and token is None:
                self._fail(request, NumericsError(_NOT_FINITE))
                continue
            sequence.advance(chunk.rows)
            if sequence.computed >= sequence.due:
                self._cache.settle(sequence)
            if token is not None and (message := self._accept(request, token)) is not None:
                outbox.append(message)

    def _draft(self) -> None:
        """Gives the running sequences that speculate drafts for the next step, which may be left out of it."""
        for sequence in self._scheduler.running:
            request = self._requests[sequence.id]
            if request.drafter is None or sequence.total - sequence.computed != 1:
                continue
            sequence.draft = request.drafter.draft(sequence.tokens, request.last - sequence.total - 1)

    def _commit_draft(self, request: Request, draft: tuple[int, ...], tokens: list[Token | None]) -> None:
        """Takes over the tokens of a chunk with a draft, one of each row, up to the first that the draft has not."""
        sequence = request.sequence
        taken: list[Token] = []
        said: FromEngine | None = None
        right = 0
        for token, drafted in zip(tokens, (*draft, None), strict=True):
            if token is None:
                break
            sequence.advance(1)
            if sequence.computed >= sequence.due:
                self._cache.settle(sequence)
            said = self._accept(request, token)
            assert isinstance(said, Tokens), "who drafts, decodes"
            taken += said.tokens
            right += token.id == drafted
            if said.finish is not None or token.id != drafted:
                break
        self._counters.drafted_tokens += len(draft)
        self._counters.accepted_tokens += right
        assert request.drafter is not None
        request.drafter.judge(len(draft), right, sequence.total)
        if said is not None:
            self._outbox.append(structs.replace(said, tokens=taken))
        if token is None:
            self._fail(request, NumericsError(_NOT_FINITE))

    def _add(self, request: Request) -> None:
        """Queues a request, which waits for its constraint first if it has one."""
        if self._given_up is not None:
            raise self._given_up
        sequence = request.sequence
        grammar = sequence.sampling.grammar
        self._scheduler.add(sequence, held=grammar is not None)
        self._requests[sequence.id] = request
        self._stirred = True
        if grammar is not None:
            self.constraints.prepare(sequence.id, grammar, sequence.tokens.tolist())

    def _expect(self, sequence: Sequence) -> None:
        """The sequence has got pages, which are filled from outside."""
        raise AssertionError(f"an engine of no pool computes every sequence itself: {sequence}")

    def _accept(self, request: Request, token: Token) -> FromEngine | None:
        """Takes a token over; what to say of it."""
        sequence = request.sequence
        total = len(sequence.tokens)
        self._counters.generated_tokens += 1
        if total == sequence.prompt_length:
            self._count_prompt(sequence)
        if token.id in request.stops:
            return self._end(request, [], "stop", stopped_by=token.id)
        sequence.append(token.id)
        if request.matcher is not None and request.matcher.finished:
            return self._end(request, [token], "stop")
        if total + 1 == request.last:
            return self._end(request, [token], "length")
        return Tokens(sequence.id, [token], None, None, sequence.cached or 0)

    def _count_prompt(self, sequence: Sequence) -> None:
        self._counters.prompt_tokens += sequence.prompt_length
        self._counters.cached_tokens += sequence.cached or 0

    def _end(
        self, request: Request, tokens: list[Token], finish: FinishReason, stopped_by: int | None = None
    ) -> Tokens:
        sequence = request.sequence
        self._drop(request)
        return Tokens(sequence.id, tokens, finish=finish, stopped_by=stopped_by, cached=sequence.cached or 0)

    def _fail(self, request: Request, error: TrimaranError) -> None:
        self._cache.prefix.forget(request.sequence)
        self._drop(request)
        self._outbox.append(failure_of(request.sequence.id, error))

    def _faults_of(self, plan: StepPlan) -> dict[Sequence, list[PageFault]]:
        """What was wrong with the pages of the step's sequences, while everything is as it was then."""
        faulty: dict[Sequence, list[PageFault]] = {}
        for fault in self.runner.faults():
            faulty.setdefault(plan.chunks[fault.sequence].sequence, []).append(fault)
        return faulty

    def _abandon(self, request: Request, faults: list[PageFault]) -> None:
        """Ends a request whose pages were not its own; those that nobody else holds are not used again."""
        doubtful = self._faults.note(request.sequence, faults)
        self._drop(request)
        self._quarantine(doubtful)
        self._outbox.append(failure_of(request.sequence.id, PageIntegrityError(_NOT_ITS_OWN)))

    def _quarantine(self, doubtful: set[tuple[int, int]]) -> None:
        if doubtful:
            self._faults.quarantine(doubtful, self.sequences, self.leases.pages())

    def _settle_books(self) -> None:
        self._quarantine(self._faults.lost())
        if not self._requests and not self.leases:
            assert self._cache.unused, "pages were lost"

    def _drop(self, request: Request) -> None:
        if request.look is not None:
            self._cache.prefix.forget(request.sequence)
        self._scheduler.remove(request.sequence)
        self.constraints.forget(request.sequence.id)
        del self._requests[request.sequence.id]
        self._stirred = True
        self._quarantine(self._faults.lost())
