"""A campaign of injected page faults in a live engine: what an engine with bugs would do to its own page tables.

Between two steps something is broken: an entry of a page table, a tag, the books of the pool, or a transfer copies when
it must not. Then the engine goes on, with other requests around, leases that begin and end, and clients that leave.
Afterwards must hold: a sequence whose entries were touched has ended with a typed error in
the step that would have used them, no request got a token that it does not get alone, no other request was ended,
and every page is free, cached or quarantined.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from random import Random

from trimaran.base.messages import Failed, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.bench.closed_loop import Job, run_closed
from trimaran.bench.fault_transfers import Transfers
from trimaran.bench.faults import INJECTORS, Entry, miscounted, traces
from trimaran.engine.engine import Engine
from trimaran.engine.group import HeldPages
from trimaran.engine.sequence import Sequence
from trimaran.engine.window import pages_of

Oracle = Callable[[list[int], int], list[int]]  # the greedy tokens of a prompt that runs alone

TRANSFER_FAULTS: dict[str, Callable[[Transfers], bool | None]] = {
    "late copy, after the lease": Transfers.copy_late,
    "page freed under its lease": Transfers.free_under_lease,
}
LENGTHS = (24, 40, 64, 100)  # of prompts, behind a prefix that others have too, or none
MOST_NEW = 24
END_STEPS = 2000  # in which all that runs has ended


@dataclass
class Tally:
    """What came of a campaign. ``checked``: entries that steps were checked for where nothing had been touched."""

    injected: Counter[str] = field(default_factory=Counter)
    detected: int = 0  # sequences that were touched and ended before they could use it, copies that were refused
    harmless: int = 0  # that were touched, and ended or were computed anew before anything was used
    missed: int = 0  # that went on
    wrong: int = 0  # requests with a token that is not theirs
    false_alarms: int = 0  # requests that were ended and not touched
    checked: int = 0
    requests: int = 0
    leases: int = 0  # opened on pages of running requests, at any time
    refused: int = 0  # copies under a lease that were refused for nothing
    quarantined: int = 0

    @property
    def clean(self) -> bool:
        return not (self.missed or self.wrong or self.false_alarms or self.refused)

    def add(self, other: "Tally") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Campaign:
    """Keeps ``together`` requests in ``engine``, which runs the plain loop, and breaks its books now and then."""

    def __init__(self, engine: Engine, oracle: Oracle, vocab: int, *, seed: int = 0, together: int = 12) -> None:
        self._engine = engine
        self._oracle = oracle
        self._random = Random(seed)
        self._together = together
        self._vocab = vocab
        self._prefixes = [self._tokens(tokens) for tokens in (0, 48, 64, 96)]
        self._prompts: dict[str, list[int]] = {}
        self._outputs: dict[str, list[int]] = {}
        self._touched: dict[str, dict[Entry, tuple[int, ...]]] = {}  # what was there before the first fault
        self._miscounted: set[tuple[int, int]] = set()  # pages, by a fault; who shares one may lose it later
        self._holders: dict[str, set[tuple[int, int]]] = {}
        self._transfers = Transfers(engine, self._random)
        self.tally = Tally()

    def run(self, faults: int) -> Tally:
        """Injects so many faults, then lets all requests end; asserts that the books are whole."""
        random, injected = self._random, self.tally.injected
        while injected.total() < faults:
            while len(self._outputs) < self._together:
                self.submit()
            self.transfer()
            if random.random() < 0.05:
                self.leave()
            if random.random() < 0.3:
                self.inject(random.choice([*INJECTORS, *TRANSFER_FAULTS]))
            self.step()
        return self.end()

    def submit(self) -> None:
        """A request comes, with a prompt that begins as others do or on its own."""
        name = f"{self.tally.requests}"
        self.tally.requests += 1
        prompt = [*self._random.choice(self._prefixes), *self._tokens(self._random.choice(LENGTHS))]
        sampling = SamplingParams(temperature=0.0, max_tokens=self._random.randint(2, MOST_NEW), ignore_eos=True)
        self._prompts[name], self._outputs[name] = prompt, []
        self._engine.submit(Submit(name, prompt, sampling))

    def leave(self) -> None:
        """A client leaves, if there is one; its request's end comes with the next step."""
        if self._outputs:
            self._engine.cancel(self._random.choice(list(self._outputs)))

    def transfer(self) -> None:
        """Leases begin and end as they do where nothing is wrong."""
        self._transfers.turn(self._running)

    def inject(self, kind: str) -> None:
        """A fault, of ``INJECTORS`` or ``TRANSFER_FAULTS``, unless there is nothing that it could befall."""
        if kind in TRANSFER_FAULTS:
            refused = TRANSFER_FAULTS[kind](self._transfers)
            if refused is not None:
                self.tally.injected[kind] += 1
                self.tally.detected += refused
                self.tally.missed += not refused
            return
        cache, sequences = self._engine.cache, self._running
        before = traces(cache, sequences)
        if sequences and INJECTORS[kind](cache, sequences, self._random):
            self.tally.injected[kind] += 1
            after = traces(cache, sequences)
            for name, entries in before.items():
                first = {entry: was for entry, was in entries.items() if after[name].get(entry) != was}
                first |= self._touched.pop(name, {})
                # What a second fault has put right again is no fault any more.
                if touched := {entry: was for entry, was in first.items() if after[name].get(entry) != was}:
                    self._touched[name] = touched
            self._miscounted |= miscounted(cache, sequences, self._engine.leases.pages())

    def step(self) -> None:
        """The engine goes on, and what it says and does is judged."""
        sequences = self._running
        self._holders = {
            sequence.id: {(number, ref.page) for number, held in enumerate(sequence.pages) for ref in held.refs}
            for sequence in sequences
        }
        was = {sequence.id: (sequence, sequence.pages, sequence.computed) for sequence in sequences}
        messages = self._engine.step()
        for message in messages:
            if isinstance(message, Failed):
                self._judge_failure(message)
            elif isinstance(message, Tokens):
                self._judge_tokens(message)
        for name, (sequence, pages, computed) in was.items():
            if name in self._outputs:
                self._judge_survivor(sequence, pages, computed)

    def end(self) -> Tally:
        """Lets all requests and leases end; asserts that the books are whole."""
        for _ in range(END_STEPS):
            if self._engine.idle:
                break
            self._transfers.expire()  # or what waits for their pages would for ever
            self.step()
        assert not self._outputs, "a request has no end"
        self._transfers.expire()
        self.tally.leases = self._transfers.leases
        self.tally.refused = self._transfers.refused
        cache = self._engine.cache
        self.tally.quarantined = sum(group.pool.quarantined for group in cache.groups)
        for group in cache.groups:
            group.table[:] = 0  # what was written into rows that nobody had
        cache.check()
        assert cache.unused, "pages were lost"
        return self.tally

    @property
    def _running(self) -> list[Sequence]:
        return [sequence for sequence in self._engine.sequences if sequence.slot is not None]

    def _judge_survivor(self, sequence: Sequence, pages: tuple[HeldPages, ...], computed: int) -> None:
        """After a step that has not ended the sequence."""
        cache, touched = self._engine.cache, self._touched.get(sequence.id, {}).keys()
        if sequence.pages is not pages:  # preempted: it is computed again, with other pages
            self.tally.harmless += bool(touched)
            self._touched.pop(sequence.id, None)
        elif sequence.computed > computed:
            end = pages_of(sequence.computed, cache.groups[0].page_size)
            used = {(g, index) for g, group in enumerate(cache.groups) for index in range(group.first(computed), end)}
            self.tally.checked += len(used)
            self.tally.missed += bool(used & touched)

    def _judge_failure(self, message: Failed) -> None:
        assert message.kind == "PageIntegrityError", message
        if message.id in self._touched or self._miscounted & self._holders.get(message.id, set()):
            self.tally.detected += 1
        else:
            self.tally.false_alarms += 1
        self._forget(message.id)

    def _judge_tokens(self, message: Tokens) -> None:
        output = self._outputs[message.id]
        output += [token.id for token in message.tokens]
        right = self._oracle(self._prompts[message.id], MOST_NEW)
        if output != right[: len(output)]:
            self.tally.wrong += 1
            output[:] = right[: len(output)]
        if message.finish is not None:
            self.tally.harmless += message.id in self._touched
            self._forget(message.id)

    def _forget(self, name: str) -> None:
        del self._prompts[name], self._outputs[name]
        self._touched.pop(name, None)

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(3, self._vocab) for _ in range(count)]


def lone_tokens(engine: Engine) -> Oracle:
    """What ``engine``, which nobody breaks, makes of a prompt that runs alone."""
    known: dict[tuple[int, ...], list[int]] = {}

    def tokens(prompt: list[int], count: int) -> list[int]:
        key = tuple(prompt)
        if key not in known:
            if len(known) > 256:
                known.clear()
            [known[key]] = run_closed(engine, [Job(prompt, count)], 1).outputs
        return known[key]

    return tokens
