"""Turns a ``StepPlan`` into the arrays of a step and runs the executor. Knows arrays, not policy."""

from array import array

import numpy as np

from trimaran.engine.plan import StepPlan
from trimaran.kernels.page_tags import PageFault, PageTags, UInt64, find_faults
from trimaran.kernels.step import Executor, Int32, StepInputs, StepOutputs


class _Ints:
    """``count`` 32-bit numbers: ``items`` for Python, which reads and writes them faster there, ``array`` for NumPy."""

    def __init__(self, count: int) -> None:
        self.items = array("i", bytes(4 * count))
        self.array: Int32 = np.frombuffer(self.items, np.int32)


class _Owners:
    """The same for ``count`` numbers of sequences, which have 64 bits."""

    def __init__(self, count: int) -> None:
        self.items = array("Q", bytes(8 * count))
        self.array: UInt64 = np.frombuffer(self.items, np.uint64)


class Runner:
    """Persistent page tables, which the cache keeps, and buffers that each step fills afresh."""

    def __init__(
        self,
        executor: Executor,
        page_tables: tuple[Int32, ...],
        expected: tuple[PageTags, ...] | None,
        windows: tuple[int | None, ...],
        *,
        max_sequences: int,
        max_rows: int,
    ) -> None:
        self._executor = executor
        self._page_tables = page_tables
        self.expected = expected  # what is said of the tables' entries to an executor that compares
        self._windows = windows
        self._step: StepInputs | None = None
        self._readers = _Owners(max_sequences)
        self._tokens = _Ints(max_rows)
        self._starts = _Ints(max_sequences + 1)
        self._contexts = _Ints(max_sequences)
        self._slots = _Ints(max_sequences)
        self._logits_rows = _Ints(max_sequences)

    def start(self, plan: StepPlan, *, want_logits: bool) -> None:
        """Starts the plan's rows; ``finish`` follows before the next ``start``."""
        tokens, starts, logits_rows = self._tokens.items, self._starts.items, self._logits_rows.items
        contexts, slots, readers = self._contexts.items, self._slots.items, self._readers.items
        row = sampled = 0
        for i, chunk in enumerate(plan.chunks):
            sequence, slot, first, rows, samples, draft = chunk
            if rows == 1 or draft:
                tokens[row] = sequence.tokens[first]
                for drafted, token in enumerate(draft, row + 1):
                    tokens[drafted] = token
            else:
                tokens[row : row + rows] = sequence.tokens[first : first + rows]
            contexts[i] = first
            slots[i] = slot
            readers[i] = sequence.owner
            row += rows
            starts[i + 1] = row
            if samples:
                for giving in range(row - 1 - len(draft), row):
                    logits_rows[sampled] = giving
                    sampled += 1
        n = len(plan.chunks)
        self._step = StepInputs(
            tokens=self._tokens.array[:row],
            starts=self._starts.array[: n + 1],
            contexts=self._contexts.array[:n],
            slots=self._slots.array[:n],
            page_tables=self._page_tables,
            logits_rows=self._logits_rows.array[:sampled],
            want_logits=want_logits,
            expected=self.expected,
            readers=None if self.expected is None else self._readers.array[:n],
            decoding=plan.decoding,
        )
        self._executor.start(self._step)

    def finish(self) -> StepOutputs:
        """The results of the step, in the order of the chunks that sample: a row of each, with a draft one for each of
        the chunk's rows."""
        return self._executor.finish()

    def faults(self) -> list[PageFault]:
        """What was wrong with the pages of the last step; call it before anything of them changes."""
        assert self._step is not None
        assert self._executor.page_tags is not None
        return find_faults(self._step, self._executor.page_tags, self._windows, self._executor.page_size)
