"""Many small scripts over one set of sequences: each says what it wants computed next, and steps are filled from all.

A script is a generator that yields a ``Run`` of its own sequence and is sent the ``Rows`` of it. What it may not do is
keep logits until its next run: they are overwritten. Results do not depend on which scripts run together.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from trimaran.evaluate.sequences import Rows, Run, Sequences

T = TypeVar("T")
Script = Generator[Run, Rows, T]
PIECE = 64  # most wanted rows of one run


@dataclass(frozen=True)
class Job(Generic[T]):
    """A script, and the most tokens that its sequence will have."""

    length: int
    script: Script[T]


def play(sequences: Sequences, jobs: Iterable[Job[T]]) -> Iterator[tuple[int, T]]:
    """Runs every job and yields (its number, what its script returned), in the order in which they end."""
    waiting = enumerate(jobs)
    held = next(waiting, None)
    active: list[_Active[T]] = []
    while True:
        while held is not None and sum(len(each.run.tokens) - each.done for each in active) < sequences.rows:
            slot = sequences.open(held[1].length)
            if slot is None:
                assert active, "an empty pool holds the longest sequence"
                break
            active.append(_Active(held[0], slot, held[1].script))
            held = next(waiting, None)
        if not active:
            return
        for prefill in (True, False) if sequences.prefill is not None else (False,):
            turn = _turn(active, sequences, prefill)
            if not turn:
                continue
            rows = sequences.step([(each.slot, each.part(count)) for each, count in turn], prefill=prefill)
            for (each, count), computed in zip(turn, rows, strict=True):
                each.advance(count, computed, sequences)
        for each in [each for each in active if each.over]:
            active.remove(each)
            sequences.free(each.slot)
            assert each.value is not None
            yield each.number, each.value


class _Active(Generic[T]):
    """A job in a slot, and how far it is."""

    def __init__(self, number: int, slot: int, script: Script[T]) -> None:
        self.number = number
        self.slot = slot
        self.script = script
        self.run = next(script)
        self.done = 0  # tokens of the run
        self.over = False
        self.value: T | None = None

    def part(self, count: int) -> Run:
        """The next ``count`` tokens of the run: either none of the wanted rows are among them, or all."""
        run, first = self.run, self.done
        whole = first + count == len(run.tokens)
        wanted = run.wanted if whole else 0
        return Run(run.start + first, run.tokens[first : first + count], wanted, run.logits, run.prefill)

    def advance(self, count: int, rows: Rows, sequences: Sequences) -> None:
        """Counts what was computed, and lets the script go on where its run is complete."""
        self.done += count
        if self.done < len(self.run.tokens):
            return
        if self.run.prefill:
            sequences.hand_over(self.slot, self.run.start + len(self.run.tokens))
        self.done = 0
        try:
            self.run = self.script.send(rows)
            assert 0 <= self.run.wanted <= min(PIECE, len(self.run.tokens)), "a run's wanted rows come in one step"
        except StopIteration as end:
            self.over, self.value = True, end.value


def _turn(active: list[_Active[T]], sequences: Sequences, prefill: bool) -> list[tuple[_Active[T], int]]:
    """Who takes part in the next step of an executor, and with how many tokens: first come, first served."""
    room, wanted_room, turn = sequences.rows, sequences.wanted, []
    for each in active:
        if sequences.prefill is not None and each.run.prefill is not prefill:
            continue
        rest = len(each.run.tokens) - each.done
        count = rest if rest <= room and each.run.wanted <= wanted_room else min(room, rest - each.run.wanted)
        if count <= 0:
            continue
        room -= count
        wanted_room -= each.run.wanted if count == rest else 0
        turn.append((each, count))
        if not room:
            break
    return turn
