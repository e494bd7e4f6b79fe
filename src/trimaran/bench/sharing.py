"""What it is worth that attention reads pages once for all sequences that share them: a trace replayed, and sequences
that decode behind one prompt, each with that and without.

Two engines that differ in nothing else are loaded beside each other and measured in turn within every round, with the
same prompts; their tokens are compared. Each round has prompts of its own, so that none finds what the one before left
in the prefix cache.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trimaran.base.errors import ConfigError, TrimaranError
from trimaran.base.formats import KVFormat
from trimaran.base.messages import Failed, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.bench.cases import CHUNK
from trimaran.bench.closed_loop import Flow, run_closed
from trimaran.bench.machine import ForeignLoad, Machine, usable_cores
from trimaran.bench.mooncake import Trace, read_trace
from trimaran.checkpoint import open_checkpoint
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.models.registry import build_program, read_config

PAGE = 16
OWN = 16  # tokens of a prompt behind the shared ones; all prompts' fit one step with CHUNK rows, or a few


@dataclass(frozen=True)
class SharingSetup:
    """The load. ``shared``: prompt tokens that ``concurrency`` decoding sequences have in common, case by case."""

    model: Path
    memory: int  # bytes for pages
    kv_format: KVFormat
    concurrency: int
    trace: Path
    scale: float = 1 / 16  # of the trace's lengths
    time_scale: float = 0.0  # of its times; 0: whatever the concurrency lets in
    requests: int = 64
    shared: tuple[int, ...] = (1024, 2048, 4096)
    steps: int = 32  # decode steps of each of these cases
    threads: int = 0
    rounds: int = 1


@dataclass
class Measured:
    """One case: tokens a second with pages read apart and together, by round, and whether the tokens were the same."""

    name: str
    apart: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    same: bool = True

    @property
    def gain(self) -> float:
        """Median over the rounds of how much faster ``together`` is; 0.1 is 10 %."""
        return statistics.median(b / a - 1 for a, b in zip(self.apart, self.together, strict=True))


@dataclass
class SharingReport:
    """All cases. ``cached``: share of the trace's prompt tokens that the prefix cache had."""

    setup: SharingSetup
    trace: Trace
    machine: dict[str, str | int | float]
    cases: list[Measured] = field(default_factory=list)
    cached: float = 0.0
    foreign_cores: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        setup, trace = self.setup, self.trace
        return {
            "model": setup.model.name,
            "machine": self.machine,
            "kv_format": setup.kv_format.value,
            "kv_memory_bytes": setup.memory,
            "concurrency": setup.concurrency,
            "rounds": setup.rounds,
            "foreign_cores": self.foreign_cores,
            "trace": {
                "name": setup.trace.name,
                "requests": len(trace.requests),
                "left_out": trace.left_out,
                "scale": trace.scale,
                "block_tokens": trace.block,
                "time_scale": setup.time_scale,
                "cached_prompt_tokens": self.cached,
            },
            "cases": [
                {
                    "case": case.name,
                    "apart_tokens_per_second": case.apart,
                    "together_tokens_per_second": case.together,
                    "gain": case.gain,
                    "same_tokens": case.same,
                }
                for case in self.cases
            ],
        }

    def to_text(self) -> str:
        """One line a case."""
        setup, trace, machine = self.setup, self.trace, self.machine
        lines = [
            f"{setup.model.name}, {setup.memory / 2**20:,.0f} MiB of {setup.kv_format} pages, which are read by each "
            "sequence apart or once for all together where they are shared",
            f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}, {machine['system']}",
            f"{setup.trace.name}: {len(trace.requests)} requests, {trace.left_out} longer than the context left out; "
            f"lengths x {trace.scale:g}, so that {trace.block} tokens stand for a block; times x {setup.time_scale:g}; "
            f"{self.cached:.0%} of prompt tokens cached",
            f"medians of {setup.rounds} rounds; other processes used "
            + ("unknown" if self.foreign_cores is None else f"{self.foreign_cores:.2f} cores"),
            "",
            f"{'tokens/s':44}{'apart':>8}{'together':>10}{'gain':>8}  same tokens",
        ]
        for case in self.cases:
            apart, together = statistics.median(case.apart), statistics.median(case.together)
            same = "yes" if case.same else "NO"
            lines.append(f"{case.name:44}{apart:8,.0f}{together:10,.0f}{case.gain:+8.1%}  {same}")
        return "\n".join(lines)


def run_sharing(setup: SharingSetup, progress: Callable[[str], None]) -> SharingReport:
    """Loads two engines and measures them in turn; raises ``TrimaranError``."""
    with open_checkpoint(setup.model) as checkpoint:
        program = build_program(read_config(checkpoint))
    longest = max(setup.shared, default=0) + OWN + 2 * setup.steps
    if longest > program.context:
        raise ConfigError(f"--shared needs {longest} tokens of context; {setup.model.name} has {program.context}")
    threads = setup.threads or usable_cores()
    page_bytes = sum(group.page_bytes(setup.kv_format, PAGE) for group in program.groups)
    context = min(program.context, setup.memory // page_bytes * PAGE)
    trace = read_trace(setup.trace, setup.requests, setup.scale, context)
    report = SharingReport(setup, trace, Machine(threads).describe())
    with ExitStack() as stack:
        engines: list[Engine] = []
        for together in (False, True):
            progress(f"loading {setup.model.name}")
            engines.append(load_engine(_config(setup, context, threads, together)))
            stack.callback(engines[-1].close)
        with ForeignLoad() as foreign:
            _replay(report, engines, program.vocab, progress)
            for shared in setup.shared:
                _decode(report, engines, shared, program.vocab, progress)
        report.foreign_cores = foreign.cores if foreign.known else None
    return report


def _config(setup: SharingSetup, context: int, threads: int, together: bool) -> EngineConfig:
    return EngineConfig(
        model=str(setup.model),
        kv_format=setup.kv_format,
        kv_memory_bytes=setup.memory,
        max_model_len=context,
        max_num_seqs=setup.concurrency,
        max_num_batched_tokens=max(CHUNK, setup.concurrency),
        page_size=PAGE,
        threads=threads,
        share_prefixes=together,
    )


def _replay(report: SharingReport, engines: list[Engine], vocab: int, progress: Callable[[str], None]) -> None:
    setup = report.setup
    case = Measured(f"{setup.trace.name}, {setup.concurrency} at a time")
    for seed in range(setup.rounds):
        jobs = report.trace.jobs(vocab, seed, setup.time_scale)
        flows: list[Flow] = []
        for engine, name in zip(engines, ("apart", "together"), strict=True):
            progress(f"{case.name}, round {seed + 1}/{setup.rounds}: {name}")
            flows.append(run_closed(engine, jobs, setup.concurrency))
        for rates, flow in zip((case.apart, case.together), flows, strict=True):
            rates.append(flow.tokens / flow.seconds)
        case.same &= flows[0].outputs == flows[1].outputs
        report.cached = flows[0].cached_tokens / flows[0].prompt_tokens
    report.cases.append(case)


def _decode(
    report: SharingReport, engines: list[Engine], shared: int, vocab: int, progress: Callable[[str], None]
) -> None:
    setup = report.setup
    case = Measured(f"decode {setup.concurrency} x ({shared:,} shared + {OWN})")
    for seed in range(setup.rounds):
        draw = np.random.default_rng((seed, shared)).integers
        prefix = draw(3, vocab, shared).tolist()
        prompts = [prefix + draw(3, vocab, OWN).tolist() for _ in range(setup.concurrency)]
        outputs = []
        for engine, rates in zip(engines, (case.apart, case.together), strict=True):
            progress(f"{case.name}, round {seed + 1}/{setup.rounds}")
            rate, tokens = _decoded(engine, prompts, setup.steps)
            rates.append(rate)
            outputs.append(tokens)
        case.same &= outputs[0] == outputs[1]
    report.cases.append(case)


def _decoded(engine: Engine, prompts: list[list[int]], steps: int) -> tuple[float, list[list[int]]]:
    """Tokens a second over steps in which all prompts decode, and the first tokens of each."""
    tokens: list[list[int]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=0.0, max_tokens=2 * steps, ignore_eos=True)
        engine.submit(Submit(str(number), prompt, sampling))

    def step() -> None:
        for message in engine.step():
            if isinstance(message, Failed):
                raise TrimaranError(f"the engine failed a request: {message.kind}: {message.message}")
            if isinstance(message, Tokens):
                tokens[int(message.id)] += [token.id for token in message.tokens]

    while not all(tokens):
        step()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    seconds = time.perf_counter() - began
    assert all(steps < len(each) < 2 * steps for each in tokens), "all decode in every step"
    engine.cancel_all()
    engine.step()
    return len(prompts) * steps / seconds, [each[:steps] for each in tokens]
