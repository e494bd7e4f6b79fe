"""Decides what the next step runs. Pure policy: sequences in, a ``StepPlan`` out; pages are the cache's business.

Continuous batching: each step first gives every decoding sequence its one token, then spends what is left of the token
budget on prompts, in chunks. Order is by priority, then arrival, everywhere. When pages of any cache group run out, the
running sequence that comes last in this order gives all its pages back and waits; it is computed again later, mostly
from the prefix cache. Where that would not give the same tokens, what its pages hold is parked instead.
Where prompts meet weights of their own (``apart``), a chunk ends with the prompt, and chunks of prompts come last.

What runs in the background has what others leave. While there are others it has ``BACKGROUND_ROWS`` rows of a step at
most, because a step takes as long as its rows do, and they would wait for it.

A sequence whose prompt another engine computes gets pages in its turn, and a slot, but is in no step and keeps both
until ``arrived`` says that the pages have been filled.

Nobody starves: within a priority the sequence that came first is never preempted for a later one, it can always finish
alone in the cache (others are refused at submit), and finishing makes the next one first. Pages under a lease are the
exception: while they leave too few, all wait, and no lease lasts.
"""

from bisect import insort
from collections.abc import Callable
from collections.abc import Sequence as Items
from operator import attrgetter

from trimaran.base.errors import ContextLengthError, QueueFullError
from trimaran.base.messages import BACKGROUND
from trimaran.engine.cache import KVCache
from trimaran.engine.drafts import least_right
from trimaran.engine.limits import SchedulerLimits
from trimaran.engine.parking import Parking
from trimaran.engine.plan import Chunk, StepPlan
from trimaran.engine.sequence import Sequence

_rank = attrgetter("rank")
Draft = Callable[[Sequence, int, float], tuple[int, ...]]  # at most so many tokens, of which that share must be right
BACKGROUND_ROWS = 4  # enough for it to go on, and few for the others to wait for
RETRY_AFTER = 1.0  # seconds; what a refused client is told to wait


class Scheduler:
    """Owns the waiting and running sequences and their slots, and says when they take and return pages."""

    def __init__(
        self, limits: SchedulerLimits, cache: KVCache, parking: Parking | None = None, draft: Draft | None = None
    ) -> None:
        """``parking`` keeps the pages of sequences that give way; None: they are computed again. ``draft`` is asked for
        drafts where a step has room for some; None: no sequence speculates."""
        self._limits = limits
        self._draft = draft
        self._cache = cache
        self._parking = parking
        self._waiting: list[Sequence] = []  # both lists are ordered by rank
        self._running: list[Sequence] = []
        self._arriving: dict[Sequence, None] = {}
        self._placed: list[Sequence] = []  # of these, those that the step being planned has given pages
        self._held: set[Sequence] = set()  # not to be placed yet
        self._spoilt: list[Sequence] = []  # of these, those that gave way in the step being planned and lost pages
        self._slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._chunks: dict[Sequence, Chunk] = {}  # of the step being planned
        self._budget = 0  # rows that are left
        self._background = 0  # of these, those that the background may have
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._held)

    @property
    def running(self) -> Items[Sequence]:
        """The sequences that take part in steps, in order of rank."""
        return self._running

    @property
    def arriving(self) -> int:
        """Sequences whose pages are being filled from outside."""
        return len(self._arriving)

    def add(self, sequence: Sequence, *, held: bool = False) -> None:
        """Queues a sequence; one that is ``held`` waits without a place in the order until ``release``.

        Raises ``ContextLengthError`` when it could never run, even alone, ``QueueFullError`` when enough are waiting.
        """
        self._require_fit(sequence)
        if self.waiting >= self._limits.max_waiting:
            raise QueueFullError(f"{self.waiting} requests are waiting already", retry_after=RETRY_AFTER)
        if held:
            self._held.add(sequence)
        else:
            insort(self._waiting, sequence, key=_rank)

    def release(self, sequence: Sequence) -> None:
        """A sequence that was held takes the place that it would have had."""
        self._held.remove(sequence)
        insort(self._waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Drops a sequence that has finished, failed or been cancelled; its pages are free on return."""
        if sequence in self._held:
            self._held.remove(sequence)
        elif sequence.slot is None:
            self._waiting.remove(sequence)
            if self._parking is not None:
                self._parking.forget(sequence)
        else:
            self._leave(sequence)

    def arrived(self, sequence: Sequence) -> None:
        """All that the sequence's pages were to hold is there: it takes part in steps from now on."""
        del self._arriving[sequence]
        insort(self._running, sequence, key=_rank)

    def schedule(self) -> StepPlan:
        """Plans one step. Pages are taken here; counters move only when the step is committed."""
        self._chunks = {}
        self._placed, self._spoilt = [], []
        self._budget = self._limits.max_num_batched_tokens
        first_ones = (*self._running[:1], *self._waiting[:1])
        alone = all(sequence.priority >= BACKGROUND for sequence in first_ones)
        self._background = self._budget if alone else BACKGROUND_ROWS
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self._running:
            (decoding if len(sequence.tokens) - sequence.computed == 1 else prefilling).append(sequence)
        chunks = self._chunks
        for sequence in decoding:
            slot, first = sequence.slot, sequence.computed
            behind = sequence.priority >= BACKGROUND
            if slot is None or (behind and not self._background):
                continue  # it has given way, for good or for this step
            if first == sequence.room and not self._extend(sequence, first + 1):
                continue
            chunks[sequence] = Chunk(sequence, slot, first, 1, True)
            self._budget -= 1
            self._background -= behind
        if self._draft is not None:
            self._add_drafts(decoding, self._draft)
        for sequence in prefilling:
            if sequence.slot is not None and self._rows(sequence):
                self._plan(sequence)
        if self._waiting:
            self._admit()
        rows = self._limits.max_num_batched_tokens - self._budget
        planned, generated = list(chunks.values()), None
        if self._limits.apart:
            planned.sort(key=lambda chunk: chunk.sequence.in_prompt)
            generated = sum(not chunk.sequence.in_prompt for chunk in planned)
        return StepPlan(tuple(planned), rows, generated, tuple(self._placed), tuple(self._spoilt))

    def _add_drafts(self, decoding: Items[Sequence], draft_of: Draft) -> None:
        """Gives drafts what others leave: rows of the step, rows of logits, and pages that are free."""
        logits = self._limits.max_num_seqs - len(self._running) - min(len(self._waiting), len(self._slots))
        most = min(logits, self._budget - (len(self._running) - len(decoding)))
        least = least_right(len(decoding))
        for sequence in decoding:
            if most <= 0:
                return
            chunk = self._chunks.get(sequence)
            if chunk is None or (self._limits.apart and sequence.in_prompt):
                continue
            if not (draft := draft_of(sequence, min(most, self._rows(sequence)), least)):
                continue
            total = chunk.first + 1 + len(draft)
            if total > sequence.room and not self._cache.extend(sequence, total):
                continue
            self._chunks[sequence] = chunk._replace(rows=1 + len(draft), draft=draft)
            most -= len(draft)
            self._spend(sequence, len(draft))

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

    def _plan(self, sequence: Sequence) -> None:
        first = sequence.computed
        end = sequence.prompt_length if self._limits.apart and sequence.in_prompt else sequence.total
        rows = min(end - first, self._rows(sequence))
        assert rows > 0, "who has no rows is not planned"
        if first + rows > sequence.room and not self._extend(sequence, first + rows):
            return
        assert sequence.slot is not None, "only running sequences are planned"
        self._chunks[sequence] = Chunk(sequence, sequence.slot, first, rows, first + rows == sequence.total)
        self._spend(sequence, rows)

    def _rows(self, sequence: Sequence) -> int:
        """How many more rows of this step the sequence may have."""
        return self._budget if sequence.priority < BACKGROUND else min(self._budget, self._background)

    def _spend(self, sequence: Sequence, rows: int) -> None:
        """Takes rows of this step; what is negative gives them back."""
        self._budget -= rows
        if sequence.priority >= BACKGROUND:
            self._background -= rows

    def _extend(self, sequence: Sequence, tokens: int) -> bool:
        """Gives the sequence pages for its first ``tokens`` tokens; False when it had to give way itself."""
        while not self._cache.extend(sequence, tokens):
            last = self._running[-1]
            self._preempt(last)
            if last is sequence:
                return False
        return True

    def _admit(self) -> None:
        """Starts waiting sequences in order. The first that does not fit holds the others back, or it would starve.

        One whose prefix is being computed right now is passed over: soon it need not compute that itself.
        """
        for sequence in self._waiting[: len(self._slots) or 1]:
            if not self._rows(sequence):
                return
            if self._cache.prefix.is_coming(sequence):
                continue
            while not self._place(sequence):
                if not self._running or self._running[-1].priority <= sequence.priority:
                    return
                if self._parking is not None and not self._parking.room:
                    return
                self._preempt(self._running[-1])
            self._waiting.remove(sequence)
            self._cache.prefix.announce(sequence)
            if self._parking is not None:
                self._parking.bring_back(sequence)
            if sequence.computed < sequence.known:
                self._arriving[sequence] = None
                self._placed.append(sequence)
                continue
            insort(self._running, sequence, key=_rank)
            self._plan(sequence)

    def _place(self, sequence: Sequence) -> bool:
        """Gives a sequence a slot and the pages that it needs at once.

        One page for each running sequence stays in reserve: an admission that the next page boundary would undo is
        worse than none.
        """
        reserve = len(self._running) + len(self._arriving)
        if not self._slots or not self._cache.place(sequence, self._slots[-1], reserve):
            return False
        self._slots.pop()
        if sequence.cached is None:
            sequence.cached = sequence.computed
        return True

    def _preempt(self, sequence: Sequence) -> None:
        whole = self._parking is None or self._parking.keep(sequence)
        self._leave(sequence)
        if whole:
            insort(self._waiting, sequence, key=_rank)
        else:
            self._held.add(sequence)
            self._spoilt.append(sequence)
        self.preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        """Takes a sequence out of the running ones: its chunk, slot and pages are free again."""
        assert sequence.slot is not None
        if sequence in self._arriving:
            del self._arriving[sequence]
        else:
            self._running.remove(sequence)
        self._slots.append(sequence.slot)
        self._cache.release(sequence)
        if chunk := self._chunks.pop(sequence, None):
            self._spend(sequence, -chunk.rows)
