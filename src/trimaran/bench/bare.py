"""The executor alone as a subject: prepared steps, no engine. What the engine adds is the difference."""

import time

import numpy as np

from trimaran.bench.cases import CHUNK, Case, Decode, EndToEnd, Prefill, cache_need
from trimaran.kernels.step import Executor, Int32, StepInputs


class BareExecutor:
    """Runs an executor on pages that it deals out itself; takes ownership of the executor."""

    name = "executor"

    def __init__(self, executor: Executor, vocab: int) -> None:
        self._executor = executor
        self._tokens: Int32 = np.random.default_rng(1).integers(3, vocab, 1 << 16, dtype=np.int32)
        self._page_tables: tuple[Int32, ...] = ()

    def measure(self, case: Case) -> float | None:
        self._deal(cache_need(case)[1])
        match case:
            case Prefill(tokens):
                began = time.perf_counter()
                self._prefill(0, tokens)
                return tokens / (time.perf_counter() - began)
            case Decode(depth, steps, sequences):
                for slot in range(sequences):
                    self._prefill(slot, depth)
                return sequences * steps / self._decode(depth, steps, sequences)
            case EndToEnd(sequences, prompt, output):
                began = time.perf_counter()
                for slot in range(sequences):
                    self._prefill(slot, prompt)
                self._decode(prompt, output - 1, sequences)
                return sequences * output / (time.perf_counter() - began)
            case _:
                return None

    def close(self) -> None:
        self._executor.close()

    def _deal(self, sequences: int) -> None:
        """Splits all pages of each cache group among ``sequences`` sequences; windows give none back."""
        shares = [(pages - 1) // sequences for pages in self._executor.num_pages]
        self._page_tables = tuple(
            1 + np.arange(sequences * share, dtype=np.int32).reshape(sequences, share) for share in shares
        )

    def _prefill(self, slot: int, tokens: int) -> None:
        for context in range(0, tokens, CHUNK):
            rows = min(CHUNK, tokens - context)
            last = context + rows == tokens
            self._run(self._tokens[context : context + rows], [0, rows], [context], [slot], [rows - 1] if last else [])

    def _decode(self, depth: int, steps: int, sequences: int) -> float:
        slots, starts = list(range(sequences)), list(range(sequences + 1))
        began = time.perf_counter()
        for step in range(steps):
            tokens = self._tokens[step * sequences : (step + 1) * sequences]
            self._run(tokens, starts, [depth + step] * sequences, slots, slots)
        return time.perf_counter() - began

    def _run(self, tokens: Int32, starts: list[int], contexts: list[int], slots: list[int], rows: list[int]) -> None:
        self._executor.run(
            StepInputs(
                tokens=tokens,
                starts=np.asarray(starts, np.int32),
                contexts=np.asarray(contexts, np.int32),
                slots=np.asarray(slots, np.int32),
                page_tables=self._page_tables,
                logits_rows=np.asarray(rows, np.int32),
                want_logits=False,
            )
        )
