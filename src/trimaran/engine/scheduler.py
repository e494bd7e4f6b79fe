"""Decides what the next step runs. Pure policy: sequences and page numbers in, a ``StepPlan`` out, no tensors.

Continuous batching: each step first gives every decoding sequence its one token, then spends what is left of the token
budget on prompts, in chunks. Order is by priority, then arrival, everywhere. When pages run out, the running sequence
that comes last in this order gives its pages back and waits; it is computed again later, mostly from the prefix cache.

Nobody starves: within a priority the sequence that came first is never preempted for a later one, it can always finish
alone in the pool (others are refused at submit), and finishing makes the next one first.
"""

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter

from trimaran.base.errors import ContextLengthError, QueueFullError
from trimaran.engine.pages import PagePool, PageRef
from trimaran.engine.plan import Chunk, StepPlan
from trimaran.engine.prefix import PrefixCache
from trimaran.engine.sequence import Sequence

_rank = attrgetter("rank")
RETRY_AFTER = 1.0  # seconds; what a refused client is told to wait


@dataclass(frozen=True)
class SchedulerLimits:
    """What a step and the queue may hold. A step has at least one row for each running sequence."""

    context: int  # tokens of one sequence, prompt and output
    max_num_seqs: int
    max_num_batched_tokens: int
    max_waiting: int
    page_size: int

    def __post_init__(self) -> None:
        assert self.max_num_batched_tokens >= self.max_num_seqs > 0


class Scheduler:
    """Owns the waiting and running sequences, their slots and their pages."""

    def __init__(self, limits: SchedulerLimits, pool: PagePool, prefix: PrefixCache) -> None:
        assert pool.total * limits.page_size >= limits.context, "one full sequence must fit the pool"
        self._limits = limits
        self._pool = pool
        self._prefix = prefix
        self._waiting: list[Sequence] = []  # both lists are ordered by rank
        self._running: list[Sequence] = []
        self._slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._chunks: dict[Sequence, Chunk] = {}  # of the step being planned
        self._budget = 0
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence.

        Raises ``ContextLengthError`` when it could never run, even alone, ``QueueFullError`` when enough are waiting.
        """
        self._require_fit(sequence)
        if len(self._waiting) >= self._limits.max_waiting:
            raise QueueFullError(f"{len(self._waiting)} requests are waiting already", retry_after=RETRY_AFTER)
        insort(self._waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Drops a sequence that has finished, failed or been cancelled; its pages are free on return."""
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._leave(sequence)

    def schedule(self) -> StepPlan:
        """Plans one step. Pages are taken here; counters move only when the step is committed."""
        self._chunks = {}
        self._budget = self._limits.max_num_batched_tokens
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self._running:
            (decoding if len(sequence.tokens) - sequence.computed == 1 else prefilling).append(sequence)
        chunks, page_size = self._chunks, self._limits.page_size
        for sequence in decoding:
            slot, first, known_pages = sequence.slot, sequence.computed, len(sequence.pages)
            if slot is None or (first == known_pages * page_size and not self._extend(sequence)):
                continue  # it has given way
            chunks[sequence] = Chunk(sequence, slot, first, 1, known_pages, True)
            self._budget -= 1
        for sequence in prefilling:
            if sequence.slot is not None and self._budget:
                self._plan(sequence, len(sequence.pages))
        if self._waiting:
            self._admit()
        return StepPlan(tuple(self._chunks.values()), self._limits.max_num_batched_tokens - self._budget)

    def _require_fit(self, sequence: Sequence) -> None:
        limits, prompt, asked = self._limits, sequence.prompt_length, sequence.sampling.max_tokens
        if prompt + 1 > limits.context:
            raise ContextLengthError(
                f"the prompt has {prompt} tokens; with at least one to generate, at most {limits.context - 1} fit the "
                f"context of {limits.context}",
                param="prompt",
            )
        if asked is not None and prompt + asked > limits.context:
            raise ContextLengthError(
                f"{prompt} prompt tokens and max_tokens={asked} exceed the context of {limits.context} tokens; "
                f"ask for at most {limits.context - prompt}",
                param="max_tokens",
            )

    def _plan(self, sequence: Sequence, known_pages: int) -> None:
        assert sequence.slot is not None, "only running sequences are planned"
        assert self._budget > 0, "the budget covers every running sequence"
        rows = min(sequence.total - sequence.computed, self._budget)
        samples = sequence.computed + rows == sequence.total
        self._chunks[sequence] = Chunk(sequence, sequence.slot, sequence.computed, rows, known_pages, samples)
        self._budget -= rows

    def _extend(self, sequence: Sequence) -> bool:
        """Gives the sequence a page more; False when it had to give way itself."""
        while not self._pool.available:
            last = self._running[-1]
            self._preempt(last)
            if last is sequence:
                return False
        sequence.pages.append(self._pool.allocate(sequence.id))
        return True

    def _admit(self) -> None:
        """Starts waiting sequences in order. The first that does not fit holds the others back, or it would starve.

        One whose prefix is being computed right now is passed over: soon it need not compute that itself.
        """
        for sequence in self._waiting[: len(self._slots) or 1]:
            if not self._budget:
                return
            if self._prefix.is_coming(sequence):
                continue
            while not self._place(sequence):
                if not self._running or self._running[-1].priority <= sequence.priority:
                    return
                self._preempt(self._running[-1])
            self._waiting.remove(sequence)
            insort(self._running, sequence, key=_rank)
            self._prefix.announce(sequence)
            self._plan(sequence, known_pages=0)

    def _place(self, sequence: Sequence) -> bool:
        """Gives a sequence a slot and pages for all its tokens, so that its prefill cannot run dry half way.

        One page for each running sequence stays in reserve: an admission that the next page boundary would undo is
        worse than none.
        """
        if not self._slots:
            return False
        found = self._prefix.take(sequence)
        missing = -(-sequence.total // self._limits.page_size) - len(found)
        if missing + len(self._running) > self._pool.available:
            self._release(found)
            return False
        sequence.pages = found + [self._pool.allocate(sequence.id) for _ in range(missing)]
        sequence.computed = sequence.sealed = len(found) * self._limits.page_size
        if sequence.cached is None:
            sequence.cached = sequence.computed
        sequence.slot = self._slots.pop()
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        insort(self._waiting, sequence, key=_rank)
        self.preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        """Takes a sequence out of the running ones: its chunk, slot and pages are free again."""
        assert sequence.slot is not None
        self._running.remove(sequence)
        self._slots.append(sequence.slot)
        self._prefix.withdraw(sequence)
        self._release(sequence.pages)
        sequence.slot = None
        sequence.pages = []
        sequence.computed = sequence.sealed = 0
        if chunk := self._chunks.pop(sequence, None):
            self._budget += chunk.rows

    def _release(self, pages: list[PageRef]) -> None:
        # Last page first: what is evicted first must be the end of a prefix, the beginning is useful without it.
        for ref in reversed(pages):
            self._pool.release(ref)
