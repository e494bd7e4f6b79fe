"""Sequences in numbered slots, computed by one executor, or by one that prefills and another that decodes.

Where there are two, what the first computed goes to the second page by page, converted to the second's format
(``kernels/handoff.py``), as between a prefill and a decode server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trimaran.kernels.handoff import hand_over, pages_read
from trimaran.kernels.step import Executor, ExecutorOptions, Float32, Int32, StepInputs


@dataclass(frozen=True)
class Run:
    """Consecutive tokens of a sequence, to be computed behind those that are there.

    ``start`` is the position of the first; what stood there and after it is forgotten. Of the last ``wanted`` rows the
    result is wanted: logits, or without ``logits`` the likeliest token alone. ``prefill``: by the executor that
    prefills.
    """

    start: int
    tokens: Sequence[int]
    wanted: int = 0
    logits: bool = True
    prefill: bool = False


@dataclass(frozen=True)
class Rows:
    """Of the wanted rows: the likeliest token ``[wanted]`` (-1: not finite), and logits ``[wanted, vocab]``, which are
    valid until the next step."""

    greedy: Int32
    logits: Float32 | None


class Sequences:
    """Owns its executors; ``close`` frees them. A slot keeps its pages from ``open`` to ``free``."""

    def __init__(
        self, decode: Executor, options: ExecutorOptions, longest: int, slots: int, prefill: Executor | None = None
    ) -> None:
        """``options`` are ``decode``'s; ``longest`` in tokens. Both executors have as many pages as each other, in all
        groups, and a sequence has the same page numbers in both."""
        self.decode = decode
        self.prefill = prefill
        self.rows = options.max_rows  # most of a step
        self.wanted = options.max_sequences  # most of a step whose results are wanted
        self._groups = len(decode.num_pages)
        self._free_slots = list(range(slots))
        self._free_pages = list(range(1, decode.num_pages[0]))
        self._held: dict[int, int] = {}
        self._tables = np.zeros((slots, self._pages(longest)), np.int32)

    def open(self, length: int) -> int | None:
        """A slot for a sequence of at most ``length`` tokens; None when there is no room now."""
        count = self._pages(length)
        assert count <= self._tables.shape[1], "no longer than the longest"
        if not self._free_slots or count > len(self._free_pages):
            return None
        slot = self._free_slots.pop()
        self._tables[slot] = 0
        self._tables[slot, :count] = [self._free_pages.pop() for _ in range(count)]
        self._held[slot] = count
        return slot

    def free(self, slot: int) -> None:
        """Gives the slot's pages back."""
        self._free_pages += self._tables[slot, : self._held.pop(slot)].tolist()
        self._free_slots.append(slot)

    def step(self, runs: Sequence[tuple[int, Run]], *, prefill: bool = False) -> list[Rows]:
        """Computes a run of each of some slots, all in one step of one executor."""
        executor = self.prefill if prefill and self.prefill is not None else self.decode
        ends = np.cumsum([len(run.tokens) for _, run in runs])
        wanted = [run.wanted for _, run in runs]
        step = StepInputs(
            tokens=np.concatenate([np.asarray(run.tokens, np.int32) for _, run in runs]),
            starts=np.concatenate([[0], ends]).astype(np.int32),
            contexts=np.asarray([run.start for _, run in runs], np.int32),
            slots=np.asarray([slot for slot, _ in runs], np.int32),
            page_tables=(self._tables,) * self._groups,
            logits_rows=np.concatenate(
                [np.arange(end - count, end, dtype=np.int32) for end, count in zip(ends, wanted, strict=True)]
            ),
            want_logits=any(run.wanted and run.logits for _, run in runs),
        )
        out = executor.run(step)
        bounds = np.concatenate([[0], np.cumsum(wanted)])
        return [
            Rows(out.greedy[first:last], None if out.logits is None else out.logits[first:last])
            for first, last in pairwise(bounds)
        ]

    def hand_over(self, slot: int, length: int) -> None:
        """Gives the decoding executor the first ``length`` tokens of a slot, as the prefilling one has them."""
        if self.prefill is None or not length:
            return
        tables = (self._tables,) * self._groups
        pages = pages_read(self.decode.layout, tables, slot, length)
        hand_over(self.prefill, pages, self.decode, pages)

    def close(self) -> None:
        """Frees threads and memory; idempotent."""
        self.decode.close()
        if self.prefill is not None:
            self.prefill.close()

    def _pages(self, length: int) -> int:
        return -(-length // self.decode.page_size)
