"""What each format of KV pages does with the same memory: how many requests run at once, how fast, at what cost.

Engines that differ in nothing but the format of their pages are loaded beside each other and measured in turn, within
every round and at every concurrency, each with the same prompts: random ones, so that the prefix cache never helps.
"""

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat
from trimaran.bench.cases import CHUNK, Decode, cache_need
from trimaran.bench.closed_loop import Job, run_closed
from trimaran.bench.in_process import InProcessEngine
from trimaran.bench.kv_report import LEAST_REQUESTS, KVReport, KVSetup, Level
from trimaran.bench.machine import ForeignLoad, Machine, usable_cores
from trimaran.checkpoint import open_checkpoint
from trimaran.engine.config import EngineConfig
from trimaran.engine.load import load_engine
from trimaran.kernels.program import Program
from trimaran.models.registry import build_program, read_config

DEEP_STEPS = 32  # decode steps of the deep case
PAGE = 16


def run_kv(setup: KVSetup, progress: Callable[[str], None]) -> KVReport:
    """Loads an engine for each format and measures them in turn; raises ``TrimaranError``."""
    deep = Decode(setup.depth, DEEP_STEPS) if setup.depth else None
    context = max(setup.prompt + setup.output, cache_need(deep)[0] if deep else 0)
    threads = setup.threads or usable_cores()
    with open_checkpoint(setup.model) as checkpoint:
        program = build_program(read_config(checkpoint))
    if context > program.context:
        raise ConfigError(f"the load needs {context} tokens of context; {setup.model.name} has {program.context}")
    report = KVReport(setup, Machine(threads).describe())
    with ExitStack() as stack:
        subjects: dict[KVFormat, InProcessEngine] = {}
        for fmt in setup.formats:
            progress(f"loading {setup.model.name} with {fmt} pages")
            engine = load_engine(_config(setup, fmt, context, threads))
            stack.callback(engine.close)
            subjects[fmt] = InProcessEngine(engine, program.vocab)
            page_bytes = sum(group.page_bytes(fmt, PAGE) for group in program.groups)
            report.resident[fmt] = setup.memory // page_bytes * PAGE
            report.pages[fmt] = sum(pages.total for pages in engine.info.pages)
        with ForeignLoad() as foreign:
            for concurrency in setup.concurrency:
                report.levels += _levels(setup, concurrency, subjects, program, progress)
            if deep is not None:
                for _ in range(setup.rounds):
                    for fmt, subject in subjects.items():
                        progress(f"{deep.name}, {fmt} pages")
                        report.deep.setdefault(fmt, []).append(subject.decode(deep))
        report.foreign_cores = foreign.cores if foreign.known else None
    return report


def _config(setup: KVSetup, fmt: KVFormat, context: int, threads: int) -> EngineConfig:
    return EngineConfig(
        model=str(setup.model),
        kv_format=fmt,
        kv_memory_bytes=setup.memory,
        max_model_len=context,
        max_num_seqs=max(setup.concurrency),
        max_num_batched_tokens=max(CHUNK, *setup.concurrency),
        page_size=PAGE,
        threads=threads,
    )


def _levels(
    setup: KVSetup,
    concurrency: int,
    subjects: dict[KVFormat, InProcessEngine],
    program: Program,
    progress: Callable[[str], None],
) -> list[Level]:
    """All formats at one concurrency, round by round."""
    random = np.random.default_rng()
    levels = [Level(fmt, concurrency) for fmt in setup.formats]
    for number in range(1, setup.rounds + 1):
        prompts = random.integers(3, program.vocab, (max(LEAST_REQUESTS, concurrency), setup.prompt)).tolist()
        jobs = [Job(prompt, setup.output) for prompt in prompts]
        for level in levels:
            progress(f"{concurrency} together, round {number}/{setup.rounds}: {level.fmt} pages")
            level.flows.append(run_closed(subjects[level.fmt].engine, jobs, concurrency))
    return levels
