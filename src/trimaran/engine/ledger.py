"""The requests of an engine, from their queueing to their end: what they hold, what is said of them, what is counted.

The loops that run steps are ``engine.py``'s.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trimaran.base.errors import PageIntegrityError, TrimaranError
from trimaran.base.failures import failure_of
from trimaran.base.formats import CacheGroup
from trimaran.base.messages import (
    FinishReason,
    FromEngine,
    Started,
    Token,
    Tokens,
)
from trimaran.engine.cache import KVCache
from trimaran.engine.choosing import Choosing
from trimaran.engine.constraints.constraints import Constraints
from trimaran.engine.constraints.tokens import TokenTable
from trimaran.engine.faults import PageFaults
from trimaran.engine.handover import Handover
from trimaran.engine.leases import Leases
from trimaran.engine.limits import SchedulerLimits
from trimaran.engine.parking import Parking
from trimaran.engine.plan import StepPlan
from trimaran.engine.request import Reception, Request
from trimaran.engine.runner import Runner
from trimaran.engine.sampling import Sampling
from trimaran.engine.scheduler import Scheduler
from trimaran.engine.sequence import Sequence
from trimaran.kernels.page_tags import PageFault
from trimaran.kernels.step import Executor

NOT_ITS_OWN = "a page of this request's cache was not its own; the request was ended, try again"


@dataclass(slots=True)
class Counters:  # named as in ``Beat``
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    pages_distrusted: int = 0
    step_seconds: float = 0.0
    executor_seconds: float = 0.0


class Ledger:
    """Owns the requests, their sequences and the messages that are still to be sent; pages are the cache's business.

    A request is added, accepts tokens, and ends in one of three ways: as it should, failed, or abandoned because its
    pages were not its own. All of that happens between two steps.
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
        self._scheduler = Scheduler(limits, self._cache, parked, self._draft if draft_tokens else None)
        self.runner = Runner(
            executor,
            self._cache.tables,
            self._cache.expected,
            windows,
            max_sequences=limits.max_num_seqs,
            max_rows=limits.max_num_batched_tokens,
        )
        self._overlap = overlap
        self._stirred = True  # since the last time that there was no step to plan
        sampling = Sampling(executor, info.vocab)
        self._reception = Reception(
            sampling,
            vocab=info.vocab,
            context=limits.context,
            eos_ids=eos_ids,
            seed=seed,
            draft_tokens=draft_tokens,
        )
        self.constraints = Constraints(info.vocab, limits.max_num_seqs, executor.threads, token_table)
        self.choosing = Choosing(sampling, self.constraints)
        self._requests: dict[str, Request] = {}
        self._given_up: TrimaranError | None = None
        self._outbox: list[FromEngine] = []
        self._counters = Counters()

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

    def _add(self, request: Request) -> None:
        """Queues a request, which waits for its constraint first if it has one."""
        if self._given_up is not None:
            raise self._given_up
        sequence = request.sequence
        if self._limits.apart:  # what generated tokens have filled is not what a prompt of the same tokens would
            sequence.shareable = sequence.prompt_length
        grammar = sequence.sampling.grammar
        self._scheduler.add(sequence, held=grammar is not None)
        self._requests[sequence.id] = request
        self._stirred = True
        if grammar is not None:
            self.constraints.prepare(sequence.id, grammar, sequence.tokens.tolist())

    def _draft(self, sequence: Sequence, most: int, least: float) -> tuple[int, ...]:
        """See ``Draft``: none behind which an answer could not go on."""
        request = self._requests[sequence.id]
        return self.choosing.draft(request, min(most, request.last - len(sequence.tokens) - 1), least)

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
        self._outbox.append(failure_of(request.sequence.id, PageIntegrityError(NOT_ITS_OWN)))

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
