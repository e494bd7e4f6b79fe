"""What the check of page tags costs: turned off and on within one engine, in short slices of decoding, until the answer
is narrow enough.

Two engines differ by where their memory lies, by more than tags cost; so one engine runs both ways. Eight slices make a
pair: on, off, off, on, off, on, on, off, the next time the other way round, so that contexts that grow take no side. A
slice is a quarter as many steps as a page has tokens: so each of a pair's halves goes through all places of a page, for
a step in which a sequence fills one and takes another lasts some 60 us longer, and other slices would share such steps
out unequally for as long as a run lasts. The books of tags, owners and what tables expect are kept either way: they
cost a few numbers for each page.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import ConfigError
from trimaran.base.messages import Submit
from trimaran.base.sampling import SamplingParams
from trimaran.bench.cases import CHUNK
from trimaran.bench.machine import ForeignLoad, Machine, usable_cores
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.kernels.native import NativeExecutor

WIDE = 0.005  # half width of a 95 % interval that is narrow enough
LEAST_PAIRS, MOST_PAIRS = 8, 10_000
LOOK_EVERY = 32  # pairs
ORDER = (True, False, False, True, False, True, True, False)  # of a pair's slices: with the check, without
PROMPT = 256  # tokens, or up to a page fewer, so that sequences do not all fill their pages in the same steps
BLOCK = 100  # steps of either kind from which a 95th percentile is taken
SETTLE = 4  # steps after a prefill that are not measured

Seconds = npt.NDArray[np.float64]


@dataclass
class Changes:
    """What was measured with so many sequences. A pair's gaps are the times of its steps: ``[4 * steps]``."""

    batch: int
    slower: list[float] = field(default_factory=list)  # of each pair: time with the check over time without, less 1
    gaps_on: list[Seconds] = field(default_factory=list)
    gaps_off: list[Seconds] = field(default_factory=list)
    checks: list[float] = field(default_factory=list)  # of each step with the check: its share of the step
    entries: int = 0  # of page tables that were compared, and right
    seconds: float = 0.0

    @property
    def loss(self) -> tuple[float, float]:
        """Of throughput: the median of the pairs and half the width of its interval."""
        return _median(self.slower)

    @property
    def growth(self) -> tuple[float, float]:
        """Of the 95th percentile of gaps: the median of the blocks and half the width of its interval."""
        return _median(self._blocks)

    @property
    def _blocks(self) -> list[float]:
        """Growth of the 95th percentile within blocks of neighbouring pairs. What else the machine does mostly lasts
        longer than a block, so it meets both kinds of steps in one."""
        pairs = -(-BLOCK // self.gaps_on[0].size)
        starts = range(0, max(1, len(self.gaps_on) - pairs + 1), pairs)
        blocks = (slice(start, start + pairs) for start in starts)
        return [_p95(self.gaps_on[block]) / _p95(self.gaps_off[block]) - 1 for block in blocks]

    @property
    def check_share(self) -> float:
        """The median of the check's share of a step."""
        return statistics.median(self.checks)

    @property
    def narrow(self) -> bool:
        if len(self.slower) < LEAST_PAIRS or self.loss[1] > WIDE:
            return False
        blocks = self._blocks
        return len(blocks) >= LEAST_PAIRS and _median(blocks)[1] <= WIDE


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
            loss, growth = change.loss, change.growth
            batches.append(
                {
                    "sequences": change.batch,
                    "pairs": len(change.slower),
                    "seconds": change.seconds,
                    "narrow": change.narrow,
                    "throughput_loss": {"median": loss[0], "half_width": loss[1]},
                    "itl_p95_growth": {"value": growth[0], "half_width": growth[1]},
                    "check_share_of_step": change.check_share,
                    "entries_checked": change.entries,
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
            f"{self.model}: the check of page tags on, against off, in one engine",
            f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}, {machine['system']}",
            f"with 95 % intervals; other processes used {foreign}",
            "",
            f"{'sequences':>9}{'pairs':>7}{'throughput loss':>20}{'ITL p95 growth':>20}{'check, of a step':>18}",
        ]
        values = self.to_json()
        for each in values["batches"]:
            loss, growth = each["throughput_loss"], each["itl_p95_growth"]
            lines.append(
                f"{each['sequences']:9}{each['pairs']:7}"
                f"{loss['median']:12.2%} ±{loss['half_width']:.2%}{growth['value']:12.2%} ±{growth['half_width']:.2%}"
                f"{each['check_share_of_step']:18.4%}"
            )
        entries = sum(each["entries_checked"] for each in values["batches"])
        lines += ["", f"{entries:,} entries of page tables were compared, and right"]
        lines += [
            f"{each['sequences']} sequences: stopped by the time limit, after {each['seconds']:.0f} s; the intervals "
            f"are not within {WIDE:.1%}"
            for each in values["batches"]
            if not each["narrow"]
        ]
        return "\n".join(lines)


def run_integrity(
    model: Path, batches: Sequence[int], output: int, threads: int, seconds: float, progress: Callable[[str], None]
) -> IntegrityReport:
    """Measures each batch until both intervals are narrow, or for ``seconds``; raises ``TrimaranError``."""
    threads = threads or usable_cores()
    report = IntegrityReport(model.name, Machine(threads).describe(), [Changes(batch) for batch in batches])
    progress(f"loading {model.name}")
    config = EngineConfig(
        model=str(model),
        max_model_len=PROMPT + output,
        max_num_seqs=max(batches),
        max_num_batched_tokens=CHUNK,
        threads=threads,
    )
    engine = load_engine(config)
    try:
        with ForeignLoad() as foreign:
            for changes in report.changes:
                _Measurement(engine, changes, output).run(seconds, progress)
    finally:
        engine.close()
    report.foreign_cores = foreign.cores if foreign.known else None
    return report


class _Measurement:
    """Keeps ``changes.batch`` sequences decoding and measures slices of that."""

    def __init__(self, engine: Engine, changes: Changes, output: int) -> None:
        assert isinstance(engine.executor, NativeExecutor)
        self._engine = engine
        self._executor = engine.executor
        self._changes = changes
        self._output = output
        self._random = np.random.default_rng()
        self._left = 0  # steps before the first sequence ends
        self._steps = engine.executor.page_size // 4  # of a slice

    def run(self, seconds: float, progress: Callable[[str], None]) -> None:
        changes, began = self._changes, time.perf_counter()
        while (pairs := len(changes.slower)) < LEAST_PAIRS or (changes.seconds < seconds and pairs < MOST_PAIRS):
            if pairs % LOOK_EVERY == 0 and changes.narrow:
                break
            if self._left < len(ORDER) * self._steps:
                self._prefill()
            self._pair()
            changes.seconds = time.perf_counter() - began
            progress(f"{changes.batch} sequences: pair {len(changes.slower)}")
        self._check(on=True)
        self._engine.cancel_all()
        self._engine.step()
        assert self._engine.stats().page_faults == 0, "a check failed where nothing was wrong"

    def _prefill(self) -> None:
        """Starts the sequences anew."""
        engine, batch = self._engine, self._changes.batch
        self._check(on=True)
        engine.cancel_all()
        sampling = SamplingParams(temperature=0.0, max_tokens=self._output, ignore_eos=True)
        for number, length in enumerate(PROMPT - self._random.integers(0, engine.executor.page_size, batch)):
            prompt = self._random.integers(3, engine.info.vocab, length).tolist()
            engine.submit(Submit(str(number), prompt, sampling))
        while not all(sequence.output_length for sequence in engine.sequences):
            engine.step()
        self._slice(SETTLE, on=True)
        self._left = self._output - max(sequence.output_length for sequence in engine.sequences) - 1
        if self._left < len(ORDER) * self._steps:
            needed = self._output - self._left + len(ORDER) * self._steps
            raise ConfigError(f"{self._output} output tokens are too few: {batch} sequences need {needed}")

    def _pair(self) -> None:
        changes = self._changes
        other_way = len(changes.slower) % 2 == 1
        gaps: dict[bool, list[Seconds]] = {True: [], False: []}
        for on in (first != other_way for first in ORDER):
            gaps[on].append(self._slice(self._steps, on=on))
        self._left -= len(ORDER) * self._steps
        with_check, without = np.concatenate(gaps[True]), np.concatenate(gaps[False])
        changes.slower.append(float(with_check.sum() / without.sum()) - 1)
        changes.gaps_on.append(with_check)
        changes.gaps_off.append(without)

    def _check(self, *, on: bool) -> None:
        engine = self._engine
        engine.finish()
        self._executor.check_pages(on=on)
        engine.runner.expected = engine.cache.expected if on else None

    def _slice(self, steps: int, *, on: bool) -> Seconds:
        """The times of so many steps, from one commit to the next."""
        engine, changes, gaps, checks = self._engine, self._changes, np.empty(steps), np.empty(steps)
        self._check(on=on)
        if on:
            changes.entries += steps * sum(len(held.refs) for s in engine.sequences for held in s.pages)
        last = time.perf_counter()
        engine.step()  # starts the first one
        for number in range(steps):
            checks[number] = self._executor.check_seconds
            if number < steps - 1:
                engine.step()
            else:
                engine.finish()
            now = time.perf_counter()
            gaps[number], last = now - last, now
        if on:
            changes.checks.extend(checks / gaps)
        return gaps


def _p95(gaps: list[Seconds]) -> float:
    return float(np.percentile(np.concatenate(gaps), 95))


def _median(values: list[float]) -> tuple[float, float]:
    """The median, and half the width of its 95 % interval by order statistics, which no outlier stretches."""
    ordered, n = sorted(values), len(values)
    reach = 0.98 * n**0.5
    low, high = max(0, int(n / 2 - reach)), min(n - 1, int(n / 2 + reach + 0.5))
    return statistics.median(ordered), (ordered[high] - ordered[low]) / 2
