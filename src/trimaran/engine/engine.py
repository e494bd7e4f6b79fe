"""The engine: schedule, run, commit, again and again.

Two loops do the same work. The plain one waits for each step. The overlapped one starts a step and returns: while the
executor's other threads work on it, the caller sends what the step before said. Both give every request the same
tokens.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from msgspec import structs

from trimaran.base.errors import PageIntegrityError, TrimaranError
from trimaran.base.messages import (
    Beat,
    FromEngine,
    Submit,
    Token,
    Tokens,
)
from trimaran.engine.choosing import Question
from trimaran.engine.constraints.matcher import Matcher
from trimaran.engine.ledger import NOT_ITS_OWN, Counters, Ledger
from trimaran.engine.plan import StepPlan
from trimaran.engine.request import Look, Request
from trimaran.kernels.step import StepOutputs


@dataclass(frozen=True, slots=True)
class _Running:
    """A step that the executor has been given and that has not been committed."""

    plan: StepPlan
    started: float
    question: Question


class Engine(Ledger):
    """Runs requests in one thread: ``submit`` and ``cancel`` between steps, ``step`` for the messages they cause.

    Sequences, pages and page tables change only while no step is running; ``submit`` touches none of them. Sequences
    own page references from admission until they leave the scheduler. A page is published by prefix only after the step
    that filled it has returned, and given back, where a window has passed it, only after the step that did so has.
    """

    _running: _Running | None = None
    _since: float | None = None  # until when the time of steps is accounted for; None while idle

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
        self._counters = Counters()

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
        plan = self._scheduler.schedule()
        for sequence in plan.spoilt:
            self._fail(self._requests[sequence.id], PageIntegrityError(NOT_ITS_OWN))
        self._stirred = bool(plan.chunks)
        if plan.chunks:
            giving = [chunk for chunk in plan.chunks if chunk.samples]
            requests = [self._requests[chunk.sequence.id] for chunk in giving]
            question = self.choosing.ask(requests, [chunk.draft for chunk in giving])
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
        question = running.question
        tokens = self.choosing.answer(question, outputs)
        row = 0
        for chunk in plan.chunks:
            sequence = chunk.sequence
            request = requests[sequence.id]
            token, first = None, row
            if chunk.samples:
                token = tokens[row]
                row += 1 + len(chunk.draft)
            if sequence in faulty:
                self._abandon(request, faulty[sequence])
                continue
            if request.matcher is not None and request.matcher.error is not None:
                self._fail(request, request.matcher.error)
                continue
            if chunk.draft:
                self._commit_draft(request, chunk.draft, tokens[first:row], question, first)
                continue
            if chunk.samples and token is None:
                self._fail(request, self.choosing.failure(question, first))
                continue
            sequence.advance(chunk.rows)
            if sequence.computed >= sequence.due:
                self._cache.settle(sequence)
            if token is not None and (message := self._accept(request, token)) is not None:
                outbox.append(message)

    def _commit_draft(
        self, request: Request, draft: tuple[int, ...], tokens: list[Token | None], question: Question, row: int
    ) -> None:
        """Takes over the tokens of a chunk with a draft, one of each row from ``row`` on, up to the first that the
        draft has not: those behind it belong to an answer that was not given."""
        sequence, matcher = request.sequence, request.matcher
        taken: list[Token] = []
        said: FromEngine | None = None
        error: TrimaranError | None = None
        right = 0
        for number, (token, drafted) in enumerate(zip(tokens, (*draft, None), strict=True)):
            if token is None:
                error = self.choosing.failure(question, row + number)
                break
            if matcher is not None:
                self.choosing.advance(request, token.id)
                if (error := matcher.error) is not None:
                    break
            sequence.advance(1)
            if sequence.computed >= sequence.due:
                self._cache.settle(sequence)
            said = self._accept(request, token)
            assert isinstance(said, Tokens), "who drafts, decodes"
            taken += said.tokens
            right += token.id == drafted
            if said.finish is not None or token.id != drafted or (matcher is not None and not matcher.drafts):
                break
        self._counters.drafted_tokens += len(draft)
        self._counters.accepted_tokens += right
        self.choosing.judge(request, len(draft), right)
        if said is not None:
            self._outbox.append(structs.replace(said, tokens=taken))
        if error is not None:
            self._fail(request, error)
