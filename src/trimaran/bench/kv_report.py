"""How a load went at every concurrency and with every format of pages: tables for people, JSON for programs."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from trimaran.base.formats import KVFormat
from trimaran.bench.closed_loop import Flow

LEAST_REQUESTS = 8  # at any concurrency

_preemptions: Callable[[Flow], int] = attrgetter("preemptions")
_most_running: Callable[[Flow], int] = attrgetter("most_running")
_most_waiting: Callable[[Flow], int] = attrgetter("most_waiting")
_most_pages: Callable[[Flow], int] = attrgetter("most_pages")


@dataclass(frozen=True)
class KVSetup:
    """The load. ``depth``: of the one sequence whose decoding is measured too; 0: none is."""

    model: Path
    memory: int  # bytes for pages
    formats: tuple[KVFormat, ...]
    concurrency: tuple[int, ...]
    prompt: int = 384
    output: int = 128
    depth: int = 2048
    threads: int = 0
    rounds: int = 1


@dataclass
class Level:
    """One format at one concurrency, a flow a round."""

    fmt: KVFormat
    concurrency: int
    flows: list[Flow] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Generated tokens a second, prompts included in the time: the median of the rounds."""
        return statistics.median(flow.tokens / flow.seconds for flow in self.flows)

    def gap(self, percentile: float) -> float:
        """Milliseconds between two tokens of a request, over all rounds."""
        return 1e3 * float(np.percentile([gap for flow in self.flows for gap in flow.gaps], percentile))

    def most(self, count: Callable[[Flow], int]) -> int:
        """The largest of the rounds' counts."""
        return max(map(count, self.flows))


@dataclass
class KVReport:
    """All levels. ``resident``: tokens that the memory holds, ``pages``: those of the engine, by format."""

    setup: KVSetup
    machine: dict[str, str | int | float]
    resident: dict[KVFormat, int] = field(default_factory=dict)
    pages: dict[KVFormat, int] = field(default_factory=dict)
    levels: list[Level] = field(default_factory=list)
    deep: dict[KVFormat, list[float]] = field(default_factory=dict)  # tokens/s of one sequence, by round
    foreign_cores: float | None = None

    @property
    def base(self) -> KVFormat:
        """What the others are compared with: bf16, or the first."""
        return KVFormat.BF16 if KVFormat.BF16 in self.setup.formats else self.setup.formats[0]

    def level(self, fmt: KVFormat, concurrency: int) -> Level:
        return next(level for level in self.levels if (level.fmt, level.concurrency) == (fmt, concurrency))

    def cost(self, level: Level) -> float:
        """What a token costs, in machine time, over what it costs with ``base`` at the same concurrency."""
        return self.level(self.base, level.concurrency).rate / level.rate

    def peak(self, fmt: KVFormat) -> Level:
        """The level with the most tokens a second."""
        return max((level for level in self.levels if level.fmt is fmt), key=lambda level: level.rate)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        setup = self.setup
        return {
            "model": setup.model.name,
            "machine": self.machine,
            "kv_memory_bytes": setup.memory,
            "prompt_tokens": setup.prompt,
            "output_tokens": setup.output,
            "rounds": setup.rounds,
            "foreign_cores": self.foreign_cores,
            "formats": [
                {
                    "format": fmt.value,
                    "resident_tokens": self.resident[fmt],
                    "resident_ratio": self.resident[fmt] / self.resident[self.base],
                    "peak_tokens_per_second": self.peak(fmt).rate,
                    "peak_concurrency": self.peak(fmt).concurrency,
                    "deep_tokens_per_second": self.deep.get(fmt, []),
                }
                for fmt in setup.formats
            ],
            "levels": [
                {
                    "format": level.fmt.value,
                    "concurrency": level.concurrency,
                    "tokens_per_second": level.rate,
                    "tokens_per_second_by_round": [flow.tokens / flow.seconds for flow in level.flows],
                    "itl_ms": {"p50": level.gap(50), "p95": level.gap(95)},
                    "preemptions": level.most(_preemptions),
                    "most_running": level.most(_most_running),
                    "most_waiting": level.most(_most_waiting),
                    "most_pages": level.most(_most_pages),
                    "pages": self.pages[level.fmt],
                    "relative_cost": self.cost(level),
                }
                for level in self.levels
            ],
        }

    def to_text(self) -> str:
        """Two tables for people: every level, then what each format comes to."""
        setup, machine = self.setup, self.machine
        lines = [
            f"{setup.model.name}: {setup.memory / 2**20:,.0f} MiB of pages, requests of {setup.prompt} + "
            f"{setup.output} tokens, at least {LEAST_REQUESTS} and as many as run together",
            f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}, {machine['system']}",
            f"medians of {setup.rounds} rounds; other processes used "
            + ("unknown" if self.foreign_cores is None else f"{self.foreign_cores:.2f} cores"),
            "",
            f"{'together':>8}  {'pages':12}{'tok/s':>8}{'cost':>7}{'ITL p50':>9}{'p95 ms':>9}{'running':>9}"
            f"{'waiting':>9}{'preempted':>11}{'pages used':>12}",
        ]
        for level in self.levels:
            used = level.most(_most_pages) / self.pages[level.fmt]
            lines.append(
                f"{level.concurrency:8}  {level.fmt:12}{level.rate:8,.0f}{self.cost(level):7.2f}{level.gap(50):9.2f}"
                f"{level.gap(95):9.2f}{level.most(_most_running):9}{level.most(_most_waiting):9}"
                f"{level.most(_preemptions):11}{used:12.0%}"
            )
        deep = f"1 x {setup.depth:,}" if self.deep else ""
        lines += ["", f"{'pages':12}{'resident':>10}{'of ' + self.base:>10}{'peak tok/s':>12}{'at':>5}{deep:>12}"]
        for fmt in setup.formats:
            peak, resident = self.peak(fmt), self.resident[fmt]
            lines.append(
                f"{fmt:12}{resident:10,}{resident / self.resident[self.base]:10.2f}{peak.rate:12,.0f}"
                f"{peak.concurrency:5}" + (f"{statistics.median(self.deep[fmt]):12,.0f}" if self.deep else "")
            )
        return "\n".join(lines)
