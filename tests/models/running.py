"""Runs the tiny checkpoints through a paged cache whose pages lie in no order and are used again."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.checkpoint import open_checkpoint
from trimaran.kernels.open import open_executor
from trimaran.kernels.program import Program
from trimaran.kernels.step import Executor, ExecutorOptions, StepInputs
from trimaran.kernels.weights import Weight
from trimaran.models.config import ModelConfig
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config

from .families import write_checkpoint

PAGE = 16
PAGES = 24  # of each cache group
SLOTS = 4
ORACLE = ExecutorOptions(
    KVFormat.FP32, ActivationFormat.FP32, num_pages=PAGES, page_size=PAGE, max_rows=64, max_sequences=64, threads=1
)


@dataclass(frozen=True)
class Model:
    """What an executor is given."""

    cfg: ModelConfig
    program: Program
    weights: Mapping[str, Weight]


@cache
def load(name: str, weight_format: WeightFormat | None = WeightFormat.FP32) -> Model:
    """The tiny checkpoint ``name``; loaded once."""
    with tempfile.TemporaryDirectory() as folder:
        return load_path(write_checkpoint(name, Path(folder)), weight_format)


def load_path(path: Path, weight_format: WeightFormat | None, cfg: ModelConfig | None = None) -> Model:
    """The checkpoint at ``path``; ``cfg`` takes the place of what its own configuration says."""
    with open_checkpoint(path) as checkpoint:
        cfg = cfg or read_config(checkpoint)
        program = build_program(cfg)
        return Model(cfg, program, load_weights(checkpoint, cfg, program, weight_format))


@dataclass
class Tables:
    """Page tables of all groups. Pages come from a shuffled list, and go back to it when they have left the window."""

    program: Program
    rng: np.random.Generator
    tables: tuple[np.ndarray, ...] = ()
    free: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables = tuple(np.zeros((SLOTS, PAGES), np.int32) for _ in self.program.groups)
        self.free = [self.rng.permutation(np.arange(1, PAGES)).tolist() for _ in self.program.groups]

    def advance(self, slot: int, context: int, rows: int) -> None:
        """Pages for ``rows`` more tokens of the sequence in ``slot``."""
        for group, table, free in zip(self.program.groups, self.tables, self.free, strict=True):
            seen = 0 if group.window is None else max(context - group.window + 1, 0) // PAGE
            for left in np.flatnonzero(table[slot, :seen]):
                free.append(int(table[slot, left]))
                table[slot, left] = 0
            self.rng.shuffle(free)
            for number in range(-(-context // PAGE), -(-(context + rows) // PAGE)):
                table[slot, number] = free.pop()


def run(
    model: Model,
    executor: str,
    tokens: np.ndarray,
    chunks: Sequence[int],
    options: ExecutorOptions = ORACLE,
) -> np.ndarray:
    """Logits ``[tokens, vocab]`` of a sequence that is computed in ``chunks`` of rows."""
    with_pages = Tables(model.program, np.random.default_rng(7))
    opened = open_executor(executor, model.program, model.weights, options)
    try:
        return np.concatenate(
            [step(opened, with_pages, [(2, tokens, end - rows, rows)]) for rows, end in _ends(tokens, chunks)]
        )
    finally:
        opened.close()


def run_together(
    model: Model, executor: str, sequences: Sequence[np.ndarray], chunk: int, options: ExecutorOptions = ORACLE
) -> list[np.ndarray]:
    """Logits of several sequences that advance side by side, ``chunk`` tokens a step each, until all are done."""
    with_pages = Tables(model.program, np.random.default_rng(8))
    opened = open_executor(executor, model.program, model.weights, options)
    found: list[list[np.ndarray]] = [[] for _ in sequences]
    try:
        for begin in range(0, max(map(len, sequences)), chunk):
            parts = [(i, s, begin, min(chunk, len(s) - begin)) for i, s in enumerate(sequences) if begin < len(s)]
            logits = step(opened, with_pages, parts)
            ends = np.cumsum([rows for *_, rows in parts])
            for (i, *_), own in zip(parts, np.split(logits, ends[:-1]), strict=True):
                found[i].append(own)
    finally:
        opened.close()
    return [np.concatenate(parts) for parts in found]


def _ends(tokens: np.ndarray, chunks: Sequence[int]) -> list[tuple[int, int]]:
    assert sum(chunks) == len(tokens), (chunks, len(tokens))
    return list(zip(chunks, np.cumsum(chunks).tolist(), strict=True))


def step(executor: Executor, pages: Tables, parts: Sequence[tuple[int, np.ndarray, int, int]]) -> np.ndarray:
    """One step of several sequences: slot, all tokens, context and rows of each."""
    for slot, _, context, rows in parts:
        pages.advance(slot, context, rows)
    starts = np.cumsum([0, *(rows for *_, rows in parts)]).astype(np.int32)
    inputs = StepInputs(
        tokens=np.concatenate([tokens[context : context + rows] for _, tokens, context, rows in parts]),
        starts=starts,
        contexts=np.array([context for _, _, context, _ in parts], np.int32),
        slots=np.array([slot for slot, *_ in parts], np.int32),
        page_tables=pages.tables,
        logits_rows=np.arange(starts[-1], dtype=np.int32),
        want_logits=True,
    )
    logits = executor.run(inputs).logits
    assert logits is not None
    return logits.copy()
