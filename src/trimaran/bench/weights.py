"""What each format of weights does for speed: decoding with few and many sequences, and prefill, side by side.

Engines that differ in nothing but their weights stand beside each other and are measured in turn within every round.
"""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.bench.cases import CHUNK, Case, Decode, Mixed, Prefill, cache_need
from trimaran.bench.in_process import InProcessEngine
from trimaran.bench.machine import ForeignLoad, Machine, usable_cores
from trimaran.engine.config import SAME, EngineConfig
from trimaran.engine.load import load_engine

PAGE = 16


@dataclass(frozen=True)
class Candidate:
    """A model and the format that its weights are held in; ``None`` keeps the file's own. ``prefill``: see
    ``EngineConfig.prefill_weight_format``."""

    name: str
    model: Path
    fmt: WeightFormat | None
    prefill: str = SAME


@dataclass
class WeightsReport:
    """Tokens a second by case and candidate, one figure a round. ``sizes``: bytes of all weights in memory."""

    machine: dict[str, str | int | float]
    rounds: int
    cases: Sequence[Case]
    sizes: dict[str, int] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)  # what the weights are in, in words
    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by case and candidate
    foreign_cores: float | None = None

    def median(self, case: Case, name: str) -> float:
        return statistics.median(self.rates[case.name, name])

    def crossover(self, few: str, many: str) -> int | None:
        """From how many sequences on ``many`` decodes at least as fast as ``few`` at every measured number."""
        found = None
        for case in sorted((case for case in self.cases if isinstance(case, Decode)), key=lambda case: case.sequences):
            ahead = self.median(case, many) >= self.median(case, few)
            found = (case.sequences if found is None else found) if ahead else None
        return found

    def crossovers(self) -> list[tuple[str, str, int | None]]:
        """For every pair: the one that is faster alone, the other, and from where on that one is."""
        alone = next((case for case in self.cases if isinstance(case, Decode) and case.sequences == 1), None)
        if alone is None:
            return []
        names = sorted(self.sizes, key=lambda name: -self.median(alone, name))
        return [(a, b, self.crossover(a, b)) for place, a in enumerate(names) for b in names[place + 1 :]]

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "machine": self.machine,
            "rounds": self.rounds,
            "foreign_cores": self.foreign_cores,
            "unit": "tokens/s",
            "candidates": [
                {"name": name, "weights": self.held[name], "weight_bytes": size} for name, size in self.sizes.items()
            ],
            "cases": [
                {
                    "case": case.name,
                    "median": {name: self.median(case, name) for name in self.sizes},
                    "rates": {name: self.rates[case.name, name] for name in self.sizes},
                }
                for case in self.cases
            ],
            "crossovers": [
                {"faster_alone": few, "other": many, "from_sequences": number}
                for few, many, number in self.crossovers()
            ],
        }

    def to_text(self) -> str:
        """A table for people, and the crossovers in words."""
        machine = self.machine
        foreign = "unknown" if self.foreign_cores is None else f"{self.foreign_cores:.2f} cores"
        width = max(10, *(len(name) + 2 for name in self.sizes))
        lines = [
            f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}, {machine['system']}",
            f"medians of {self.rounds} rounds; other processes used {foreign}",
            "",
            f"{'tokens/s':26}" + "".join(f"{name:>{width}}" for name in self.sizes),
            f"{'MB of weights':26}" + "".join(f"{size / 1e6:{width}.1f}" for size in self.sizes.values()),
        ]
        for case in self.cases:
            row = "".join(f"{self.median(case, name):{width},.0f}" for name in self.sizes)
            lines.append(f"{case.name:26}{row}")
        lines += [""] + [f"{name}: {held}" for name, held in self.held.items()]
        for few, many, number in self.crossovers():
            where = "at no measured number of sequences" if number is None else f"from {number} sequences on"
            lines.append(f"{few} is faster alone; {many} decodes as fast or faster {where}")
        return "\n".join(lines)


def weights_cases(sequences: Sequence[int], depth: int, steps: int, prompt: int, requests: int = 0) -> list[Case]:
    """Decoding at every number of sequences, the prefill of one prompt, then ``requests`` of many lengths at once."""
    mixed = [Mixed(requests)] if requests else []
    return [*(Decode(depth, steps, number) for number in sequences), Prefill(prompt), *mixed]


def run_weights(
    candidates: Sequence[Candidate],
    cases: Sequence[Case],
    kv_format: KVFormat | None,
    threads: int,
    rounds: int,
    progress: Callable[[str], None],
) -> WeightsReport:
    """Loads an engine for each candidate and measures all cases in turn; raises ``TrimaranError``."""
    threads = threads or usable_cores()
    needs = [cache_need(case) for case in cases]
    sequences = max(count for _, count in needs)
    report = WeightsReport(Machine(threads).describe(), rounds, cases)
    with ExitStack() as stack:
        subjects: dict[str, InProcessEngine] = {}
        for candidate in candidates:
            progress(f"loading {candidate.name}")
            config = EngineConfig(
                model=str(candidate.model),
                weight_format=candidate.fmt,
                prefill_weight_format=candidate.prefill,
                kv_format=kv_format,
                max_model_len=max(tokens for tokens, _ in needs) + PAGE,
                max_num_seqs=sequences,
                max_num_batched_tokens=max(CHUNK, sequences),
                page_size=PAGE,
                threads=threads,
            )
            engine = load_engine(config)
            stack.callback(engine.close)
            subjects[candidate.name] = InProcessEngine(engine, engine.info.vocab)
            report.sizes[candidate.name] = engine.info.weight_bytes
            report.held[candidate.name] = f"{engine.info.weight_format}, {engine.info.kv_format} pages"
        with ForeignLoad() as foreign:
            for number in range(1, rounds + 1):
                for case in cases:
                    for name, subject in subjects.items():
                        progress(f"round {number}/{rounds}: {case.name}, {name}")
                        rate = subject.measure(case)
                        assert rate is not None, "an engine measures every case"
                        report.rates.setdefault((case.name, name), []).append(rate)
        report.foreign_cores = foreign.cores if foreign.known else None
    return report
