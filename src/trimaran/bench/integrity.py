"""What page tags cost: two engines that differ in nothing else, measured in turn until the answer is narrow enough."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trimaran.bench.cases import CHUNK
from trimaran.bench.closed_loop import Flow, Job, run_closed
from trimaran.bench.machine import ForeignLoad, Machine, usable_cores
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.step import Executor

LEAST_PAIRS, MOST_PAIRS = 6, 400
WIDE = 0.005  # half width of a 95 % interval that is narrow enough
PROMPT = 256


@dataclass
class Changes:
    """Relative changes by tags, one a pair: of throughput (positive: slower) and of the p95 time between tokens."""

    batch: int
    slower: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    check_share: float = 0.0  # of the time of a decode step, the median

    def interval(self, values: Sequence[float]) -> tuple[float, float]:
        """Median, and half the width of its 95 % interval by order statistics, which no outlier stretches."""
        ordered, n = sorted(values), len(values)
        reach = 0.98 * n**0.5
        low, high = max(0, int(n / 2 - reach)), min(n - 1, int(n / 2 + reach + 0.5))
        return statistics.median(ordered), (ordered[high] - ordered[low]) / 2

    @property
    def narrow(self) -> bool:
        return len(self.slower) >= LEAST_PAIRS and all(
            self.interval(values)[1] <= WIDE for values in (self.slower, self.later)
        )


@dataclass
class IntegrityReport:
    """The costs by number of sequences."""

    model: str
    machine: dict[str, str | int | float]
    changes: list[Changes]
    foreign_cores: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values; changes are shares of one."""
        batches = []
        for change in self.changes:
            slower, later = change.interval(change.slower), change.interval(change.later)
            batches.append(
                {
                    "sequences": change.batch,
                    "pairs": len(change.slower),
                    "throughput_loss": {"median": slower[0], "half_width": slower[1]},
                    "itl_p95_growth": {"median": later[0], "half_width": later[1]},
                    "check_share_of_step": change.check_share,
                }
            )
        return {
            "model": self.model,
            "machine": self.machine,
            "foreign_cores": self.foreign_cores,
            "batches": batches,
        }

    def to_text(self) -> str:
        """A table for people."""
        machine = self.machine
        foreign = "unknown" if self.foreign_cores is None else f"{self.foreign_cores:.2f} cores"
        lines = [
            f"{self.model}: page tags on, against off",
            f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}, {machine['system']}",
            f"medians of pairs with 95 % intervals; other processes used {foreign}",
            "",
            f"{'sequences':>9}{'pairs':>7}{'throughput loss':>20}{'ITL p95 growth':>20}{'check, of a step':>18}",
        ]
        for each in self.to_json()["batches"]:
            loss, growth = each["throughput_loss"], each["itl_p95_growth"]
            lines.append(
                f"{each['sequences']:9}{each['pairs']:7}"
                f"{loss['median']:12.2%} ±{loss['half_width']:.2%}{growth['median']:12.2%} ±{growth['half_width']:.2%}"
                f"{each['check_share_of_step']:18.4%}"
            )
        return "\n".join(lines)


def run_integrity(
    model: Path, batches: Sequence[int], output: int, threads: int, seconds: float, progress: Callable[[str], None]
) -> IntegrityReport:
    """Measures each batch until both intervals are narrow, or for ``seconds``; raises ``TrimaranError``."""
    threads = threads or usable_cores()
    report = IntegrityReport(model.name, Machine(threads).describe(), [Changes(batch) for batch in batches])
    with ExitStack() as stack, ForeignLoad() as foreign:
        engines = []
        for tags in (True, False):
            progress(f"loading {model.name}")
            config = EngineConfig(
                model=str(model),
                page_tags=tags,
                max_model_len=PROMPT + output,
                max_num_seqs=max(batches),
                max_num_batched_tokens=CHUNK,
                threads=threads,
            )
            engine = load_engine(config)
            stack.callback(engine.close)
            engines.append(engine)
        for changes in report.changes:
            _measure(changes, engines, output, seconds, progress)
    report.foreign_cores = foreign.cores if foreign.known else None
    return report


def _measure(
    changes: Changes, engines: Sequence[Engine], output: int, seconds: float, progress: Callable[[str], None]
) -> None:
    on, off = engines
    random = np.random.default_rng()
    spent, checks = 0.0, []
    while not changes.narrow and len(changes.slower) < MOST_PAIRS and spent < seconds:
        prompts = random.integers(3, on.info.vocab, (changes.batch, PROMPT)).tolist()
        jobs = [Job(prompt, output) for prompt in prompts]
        order = [on, off] if len(changes.slower) % 2 else [off, on]  # so that a drift takes no side
        flows = {id(engine): run_closed(engine, jobs, changes.batch, watch(engine)) for engine in order}
        with_tags, without = flows[id(on)], flows[id(off)]
        assert with_tags.outputs == without.outputs, "tags change no token"
        changes.slower.append(with_tags.seconds / without.seconds - 1)
        changes.later.append(_p95(with_tags) / _p95(without) - 1)
        checks.append(statistics.median(with_tags.watched) / statistics.median(with_tags.gaps))
        spent += with_tags.seconds + without.seconds
        progress(f"{changes.batch} sequences: pair {len(changes.slower)}")
    changes.check_share = statistics.median(checks)


def _p95(flow: Flow) -> float:
    return float(np.percentile(flow.gaps, 95))


def watch(engine: Engine) -> Callable[[], float]:
    """Tells the seconds that the check of the last step has taken."""
    executor: Executor = engine.executor
    assert isinstance(executor, NativeExecutor)
    return lambda: executor.check_seconds
