"""Turns a ``StepPlan`` into the arrays of a step and runs the executor. Knows arrays, not policy."""

import numpy as np

from trimaran.engine.plan import Chunk, StepPlan
from trimaran.kernels.step import Executor, StepInputs, StepOutputs


class Runner:
    """One persistent page-table row per running sequence, and buffers that each step fills afresh."""

    def __init__(self, executor: Executor, *, context: int, max_sequences: int, max_rows: int) -> None:
        self._executor = executor
        pages = -(-context // executor.page_size)
        self._page_table = np.zeros((max_sequences, pages), np.int32)
        self._tokens = np.zeros(max_rows, np.int32)
        self._starts = np.zeros(max_sequences + 1, np.int32)
        self._contexts = np.zeros(max_sequences, np.int32)
        self._slots = np.zeros(max_sequences, np.int32)
        self._logits_rows = np.zeros(max_sequences, np.int32)

    def run(self, plan: StepPlan, *, want_logits: bool) -> StepOutputs:
        """Runs the plan's rows; result row ``i`` belongs to the ``i``-th chunk that samples."""
        row = sampled = 0
        for i, chunk in enumerate(plan.chunks):
            sequence, slot, first, rows, known_pages, samples = chunk
            if known_pages < len(sequence.pages):
                self._add_pages(chunk)
            self._tokens[row : row + rows] = sequence.tokens[first : first + rows]
            self._contexts[i] = first
            self._slots[i] = slot
            row += rows
            self._starts[i + 1] = row
            if samples:
                self._logits_rows[sampled] = row - 1
                sampled += 1
        n = len(plan.chunks)
        return self._executor.run(
            StepInputs(
                tokens=self._tokens[:row],
                starts=self._starts[: n + 1],
                contexts=self._contexts[:n],
                slots=self._slots[:n],
                page_table=self._page_table,
                logits_rows=self._logits_rows[:sampled],
                want_logits=want_logits,
            )
        )

    def _add_pages(self, chunk: Chunk) -> None:
        row, known = self._page_table[chunk.slot], chunk.known_pages
        pages = chunk.sequence.pages
        if known == 0:
            row[:] = 0  # the slot's last owner
        row[known : len(pages)] = [ref.page for ref in pages[known:]]
