"""Measures cases on several subjects, interleaved round by round, and reports them beside the floor."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimaran.bench.cases import Case, Decode, Subject
from trimaran.bench.floor import Work
from trimaran.bench.machine import ForeignLoad, Machine

BEHIND = 0.7
OURS = ("engine", "executor", "http")  # the names of our own subjects


@dataclass
class Line:
    """One case: tokens a second of every round, by subject, and at the floor as it was just before.

    ``step_bytes``: what a decode step has to read.
    """

    case: Case
    floors: list[float] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    step_bytes: int | None = None

    def median(self, subject: str) -> float | None:
        rates = self.rates.get(subject)
        return statistics.median(rates) if rates else None

    @property
    def floor(self) -> float:
        """The median."""
        return statistics.median(self.floors)

    @property
    def share(self) -> float:
        """The engine's share of the floor: of the rounds' shares the median."""
        return statistics.median(rate / floor for rate, floor in zip(self.rates["engine"], self.floors, strict=True))

    def far_behind(self, peers: Sequence[str]) -> set[str]:
        """The peers that reached less than ``BEHIND`` of the best one."""
        medians = {peer: rate for peer in peers if (rate := self.median(peer)) is not None}
        return {peer for peer, rate in medians.items() if rate < BEHIND * max(medians.values())}


@dataclass(frozen=True)
class Report:
    """All lines of a run. ``foreign_cores`` is what other processes used meanwhile; above 0.1 expect noise."""

    model: str
    machine: dict[str, str | int | float]
    formats: str
    rounds: int
    peers: tuple[str, ...]
    lines: list[Line]
    read_gb_s: list[float]  # of 96 MiB, before each round
    foreign_cores: float | None

    @property
    def subjects(self) -> list[str]:
        """Ours, then the peers; those that were measured in some case."""
        return [name for name in (*OURS, *self.peers) if any(name in line.rates for line in self.lines)]

    def ratio(self, line: Line, subject: str = "engine") -> float | None:
        """The median of one of our subjects over that of the best peer."""
        ours, theirs = line.median(subject), [rate for peer in self.peers if (rate := line.median(peer))]
        return ours / max(theirs) if ours and theirs else None

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "model": self.model,
            "machine": self.machine,
            "formats": self.formats,
            "rounds": self.rounds,
            "read_gb_s_96_mib": self.read_gb_s,
            "foreign_cores": self.foreign_cores,
            "unit": "tokens/s",
            "cases": [
                {
                    "case": line.case.name,
                    "step_bytes": line.step_bytes,
                    "floor": line.floor,
                    "floors": line.floors,
                    "share_of_floor": line.share,
                    "median": {subject: line.median(subject) for subject in line.rates},
                    "rates": line.rates,
                    "ratio_to_best_peer": self.ratio(line),
                    "ratio_over_http": self.ratio(line, "http"),
                }
                for line in self.lines
            ],
        }

    def to_text(self) -> str:
        """A table for people: medians in tokens a second, with the range where rounds differ."""
        head = f"{'tokens/s':32}{'engine':>8}{'(min - max)':>16}{'ms':>9}{'MB/step':>9}{'floor':>9}{'share':>7}"
        head += "".join(f"{subject:>{_width(subject)}}" for subject in self.subjects[1:])
        head += "".join(f"{title:>8}" for title in self._ratios())
        return "\n".join([*self._preamble(), "", head, *(self._row(line) for line in self.lines)])

    def _ratios(self) -> dict[str, str]:
        """The columns that compare: their titles, and which of our subjects they are about."""
        titles = {"x best": "engine", "http x": "http"} if self.peers else {}
        return {title: subject for title, subject in titles.items() if subject in self.subjects}

    def _preamble(self) -> Iterable[str]:
        machine = self.machine
        yield f"{self.model}: {self.formats}"
        yield f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}, {machine['system']}"
        yield (
            f"measured bounds: read {min(self.read_gb_s):.1f} to {max(self.read_gb_s):.1f} GB/s (96 MiB), "
            f"int8 {machine['int8_tops']} TOP/s, "
            f"fp32 {machine['fp32_tflops']} TFLOP/s"
        )
        foreign = "unknown" if self.foreign_cores is None else f"{self.foreign_cores:.2f} cores"
        yield f"medians of {self.rounds} rounds; other processes used {foreign}"

    def _row(self, line: Line) -> str:
        rates = line.rates["engine"]
        ours = statistics.median(rates)
        row = f"{line.case.name:32}{ours:8.0f}{f'({min(rates):.0f} - {max(rates):.0f})':>16}"
        row += f"{1e3 * line.case.counted / ours:9.2f}"
        row += f"{'-' if line.step_bytes is None else f'{line.step_bytes / 1e6:.1f}':>9}"
        row += f"{line.floor:9.0f}{line.share:7.0%}"
        for subject in self.subjects[1:]:
            rate = line.median(subject)
            row += f"{'-' if rate is None else f'{rate:.0f}':>{_width(subject)}}"
        for subject in self._ratios().values():
            ratio = self.ratio(line, subject)
            row += f"{'-' if ratio is None else f'{ratio:.2f}':>8}"
        return row


def _width(subject: str) -> int:
    return 2 + max(len(subject), 8)


def compare(
    model: str,
    formats: str,
    work: Work,
    machine: Machine,
    cases: Sequence[Case],
    subjects: Sequence[Subject],
    rounds: int,
    progress: Callable[[str], None],
) -> Report:
    """Runs ``rounds`` rounds over all cases; in each, one subject after the other, so that all meet the same noise.

    A peer that was far behind another in a case is not measured there again. ``progress`` is called before each
    measurement with what comes. The machine's bounds are measured before each case in each round.
    """
    lines = [Line(case, step_bytes=case.cost(work).bytes if isinstance(case, Decode) else None) for case in cases]
    read_gb_s = []
    peers = tuple(subject.name for subject in subjects if subject.name not in OURS)
    with ForeignLoad() as foreign:
        for number in range(1, rounds + 1):
            read_gb_s.append(machine.bandwidth(96 << 20) / 1e9)
            for line in lines:
                machine.renew()
                line.floors.append(line.case.floor(work, machine))
                behind = line.far_behind(peers)
                for subject in subjects:
                    if subject.name in behind:
                        continue
                    progress(f"round {number}/{rounds}: {line.case.name}, {subject.name}")
                    rate = subject.measure(line.case)
                    if rate is not None:
                        line.rates.setdefault(subject.name, []).append(rate)
    return Report(
        model=model,
        machine=machine.describe(),
        formats=formats,
        rounds=rounds,
        peers=peers,
        lines=lines,
        read_gb_s=read_gb_s,
        foreign_cores=foreign.cores if foreign.known else None,
    )
