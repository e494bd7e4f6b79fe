"""What is measured. A case means the same for every subject; its figure is always tokens a second.

``counted`` is how many tokens count in one prompt, one step or one whole batch; over the figure, it is its time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trimaran.bench.floor import Cost, Part, Work
from trimaran.bench.machine import Machine

CHUNK = 512  # prompt tokens a step


@dataclass(frozen=True)
class Prefill:
    """One prompt, up to its first token: prompt tokens over the time to that token."""

    tokens: int

    @property
    def name(self) -> str:
        return f"prefill {self.tokens}"

    @property
    def counted(self) -> int:
        return self.tokens

    def floor(self, work: Work, machine: Machine) -> float:
        """Tokens a second at the physical floor."""
        return self.tokens / prefill_floor(work, machine, [self.tokens])


@dataclass(frozen=True)
class Decode:
    """``sequences`` sequences, ``depth`` tokens deep, take ``steps`` steps together: new tokens over their time."""

    depth: int
    steps: int
    sequences: int = 1

    @property
    def name(self) -> str:
        return f"decode {self.sequences} x depth {self.depth}"

    @property
    def counted(self) -> int:
        return self.sequences

    @property
    def limit(self) -> int:
        """Tokens to ask for, so that no sequence ends before ``steps`` steps have followed the last one's prefill."""
        return self.steps + 2 + self.sequences * self.depth // (CHUNK // 2)

    def cost(self, work: Work) -> Cost:
        """What the middle step cannot do without."""
        return work.cost([Part(self.depth + self.steps // 2)] * self.sequences, self.sequences)

    def floor(self, work: Work, machine: Machine) -> float:
        """Tokens a second at the physical floor, at the middle step."""
        return self.sequences / self.cost(work).seconds(machine)


@dataclass(frozen=True)
class EndToEnd:
    """``sequences`` prompts arrive at once and each gets ``output`` tokens: new tokens over the whole time."""

    sequences: int
    prompt: int
    output: int

    @property
    def name(self) -> str:
        return f"end to end {self.sequences} x ({self.prompt} + {self.output})"

    @property
    def counted(self) -> int:
        return self.sequences * self.output

    def floor(self, work: Work, machine: Machine) -> float:
        """Tokens a second at the physical floor: all prefill, then all decode."""
        seconds = prefill_floor(work, machine, [self.prompt] * self.sequences)
        middle = [Part(self.prompt + self.output // 2)] * self.sequences
        seconds += (self.output - 1) * work.cost(middle, self.sequences).seconds(machine)
        return self.counted / seconds


@dataclass(frozen=True)
class Mixed:
    """``requests`` requests of many lengths arrive at once: new tokens over the whole time.

    Lengths are drawn once, log-uniformly: prompts of 16 to 512 tokens, outputs of 8 to 128.
    """

    requests: int

    @property
    def name(self) -> str:
        return f"mixed {self.requests} requests"

    @property
    def counted(self) -> int:
        return sum(output for _, output in self.lengths())

    def lengths(self) -> list[tuple[int, int]]:
        """(prompt, output) tokens of each request."""
        draw = np.random.default_rng(0).uniform
        return [
            (int(np.exp(draw(np.log(16), np.log(512)))), int(np.exp(draw(np.log(8), np.log(128)))))
            for _ in range(self.requests)
        ]

    def floor(self, work: Work, machine: Machine) -> float:
        """Tokens a second if all rows shared as few steps as the longest output allows."""
        lengths = self.lengths()
        rows = [work.cost([Part(0, prompt + output - 1)], output) for prompt, output in lengths]
        maths = Cost(0, sum(row.int8_ops for row in rows), sum(row.fp32_ops for row in rows)).seconds(machine)
        together = [sum(output > step for _, output in lengths) for step in range(max(output for _, output in lengths))]
        read = [work.weights_read(rows) for rows in together]
        return self.counted / max(maths, sum(read) / machine.bandwidth(max(read)))


Case = Prefill | Decode | EndToEnd | Mixed


def cache_need(case: Case) -> tuple[int, int]:
    """(tokens of the longest sequence, sequences at once) that ``case`` keeps in the cache."""
    match case:
        case Prefill(tokens):
            return tokens + 1, 1
        case Decode(depth, _, sequences):
            return depth + case.limit, sequences
        case EndToEnd(sequences, prompt, output):
            return prompt + output, sequences
        case Mixed(requests):
            return max(prompt + output for prompt, output in case.lengths()), requests


class Subject(Protocol):
    """Something that can be measured."""

    name: str

    def measure(self, case: Case) -> float | None:
        """Tokens a second, measured now; ``None`` when this subject has no such case."""
        ...

    def close(self) -> None:
        """Frees what it holds; idempotent."""
        ...


def prefill_floor(work: Work, machine: Machine, prompts: Sequence[int]) -> float:
    """Seconds for prompts one after the other, in chunks of ``CHUNK``."""
    seconds = 0.0
    for prompt in prompts:
        for context in range(0, prompt, CHUNK):
            rows = min(CHUNK, prompt - context)
            seconds += work.cost([Part(context, rows)], int(context + rows == prompt)).seconds(machine)
    return seconds


def latency_cases(lengths: Sequence[int], depths: Sequence[int], steps: int) -> list[Case]:
    """One sequence at a time."""
    return [*(Prefill(tokens) for tokens in lengths), *(Decode(depth, steps) for depth in depths)]


def throughput_cases(sequences: Sequence[int], depth: int, steps: int, output: int, requests: int) -> list[Case]:
    """Many sequences at once; a whole batch is of up to 32 requests with ``output`` tokens each."""
    whole = EndToEnd(min(max(sequences), 32), depth, output)
    return [*(Decode(depth, steps, n) for n in sequences), whole, Mixed(requests)]
