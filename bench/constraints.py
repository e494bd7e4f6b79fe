"""What a constraint costs in a step: one of ours, for all requests at once, and a processor for each request.

    python bench/constraints.py smollm2

Requests decode side by side, free or held to one of 100,000 ids (``TokenTrie``). Shown is the time of a step
that choosing tokens takes on the engine's thread: masks, sampling, and moving on; its median over steps. What it is
above that of free requests is the constraint's. The other way is what many servers offer: a Python function for each
request, which gets the tokens so far and a row of logits, and puts minus infinity where a token may not come.

With ``--check`` the exit status is 1 unless, with the most requests, ours adds a tenth of what the others add, at most.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, ClassVar

import numpy as np

from trimaran.base.grammar import Grammar
from trimaran.base.messages import Submit, Token
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint.sources import resolve
from trimaran.engine.choosing import Choosing, Question
from trimaran.engine.config import EngineConfig
from trimaran.engine.constraints.protocol import Vocabulary
from trimaran.engine.constraints.trie import TokenTrie
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.engine.request import Request
from trimaran.kernels.step import Float32, StepOutputs

DEPTH = 8  # tokens of an id: letters and digits, one token each
GRAMMAR = Grammar("constraint", '{"name": "items"}', "constraint")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=3, help="times that all requests of a batch run")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    most = max(options.batches)
    config = EngineConfig(
        model=str(resolve(options.model).path),
        max_num_seqs=most,
        max_num_batched_tokens=max(512, most),
        max_model_len=64,
        threads=options.threads,
        seed=1,
    )
    engine = load_engine(config)
    sequences = item_ids(engine, options.ids)
    engine.constraints.add("items", lambda vocabulary: TokenTrie(vocabulary, sequences))
    for sequence in sequences:
        node = PerRequest.root
        for token in sequence:
            node = node.setdefault(token, {})
    print(f"{len(sequences):,} ids of {DEPTH} tokens, vocabulary of {engine.info.vocab:,}; microseconds per step\n")
    names = ("requests", "free", "ours", "added", "per request", "added", "ratio", "step")
    print("".join(f"{name:>12}" for name in names))
    added = others = 0.0
    for batch in options.batches:
        free, step = measure(engine, batch, options.rounds, Timed, None)
        ours, _ = measure(engine, batch, options.rounds, Timed, GRAMMAR)
        theirs, _ = measure(engine, batch, options.rounds, PerRequest, None)
        added, others = ours - free, theirs - free
        times = [f"{1e6 * seconds:,.0f}" for seconds in (free, ours, added, theirs, others)]
        ratio = f"{others / added:.1f}" if added > 0 else "-"  # few tokens are sooner looked at than all
        cells = [batch, *times, ratio, f"{1e6 * step:,.0f}"]
        print("".join(f"{cell:>12}" for cell in cells), flush=True)
    engine.close()
    return int(options.check and added > others / 10)


def item_ids(engine: Engine, count: int) -> list[tuple[int, ...]]:
    """Distinct ids, as tokens; drawn, but the same ones every time."""
    vocabulary = engine.constraints.vocabulary()
    letters = np.array([single(vocabulary, character) for character in b"abcdefghijklmnopqrstuvwxyz0123456789"])
    drawn = np.random.default_rng(7).integers(len(letters), size=(count, DEPTH))
    return sorted(set(map(tuple, letters[drawn].tolist())))


def single(vocabulary: Vocabulary, byte: int) -> int:
    return list(vocabulary.tokens).index(bytes([byte]))


def measure(
    engine: Engine, batch: int, rounds: int, way: type["Timed"], grammar: Grammar | None
) -> tuple[float, float]:
    """Median seconds of a step for choosing its tokens, and in all, when ``batch`` requests take part."""
    before, engine.choosing = engine.choosing, way(engine.choosing)
    choosing, whole = [], []
    for number in range(rounds):
        for place in range(batch):
            sampling = SamplingParams(max_tokens=DEPTH, seed=place, grammar=grammar, ignore_eos=grammar is None)
            engine.submit(Submit(f"{number}-{place}", [place + 1], sampling))
        time.sleep(0.05 if grammar else 0)  # so that all are ready, and begin together
        while not engine.idle:
            begun, all_run = time.perf_counter(), engine.stats().running == batch
            engine.choosing.seconds = 0.0
            engine.step()
            if all_run and engine.choosing.seconds:
                choosing.append(engine.choosing.seconds)
                whole.append(time.perf_counter() - begun)
    engine.choosing = before
    return median(choosing), median(whole)


class Timed(Choosing):
    """Counts the seconds that choosing takes."""

    def __init__(self, inner: Choosing) -> None:
        self.__dict__.update(vars(inner))
        self.seconds = 0.0

    def mask(self, question: Question) -> None:
        begun = time.perf_counter()
        super().mask(question)
        self.seconds += time.perf_counter() - begun

    def answer(self, question: Question, outputs: StepOutputs) -> list[Token | None]:
        begun = time.perf_counter()
        tokens = self.choose(question, outputs)
        self.seconds += time.perf_counter() - begun
        return tokens

    def choose(self, question: Question, outputs: StepOutputs) -> list[Token | None]:
        return super().answer(question, outputs)


class PerRequest(Timed):
    """A function for each request, which finds its own place among the ids and changes its own row."""

    root: ClassVar[dict[int, Any]] = {}

    def ask(self, requests: Sequence[Request], drafts: Sequence[tuple[int, ...]]) -> Question:
        self.requests = list(requests)
        return super().ask(requests, drafts)

    def choose(self, question: Question, outputs: StepOutputs) -> list[Token | None]:
        assert outputs.logits is not None
        for request, row in zip(self.requests, outputs.logits, strict=True):
            sequence = request.sequence
            row[:] = self.process(sequence.tokens[sequence.prompt_length :].tolist(), row)
        return super().choose(question, outputs)

    def process(self, said: list[int], logits: Float32) -> Float32:
        """The usual shape of a processor: tokens so far and logits in, logits out."""
        node = self.root
        for token in said:
            node = node[token]
        allowed = np.full_like(logits, -1e30)  # the engine takes infinity for a broken model
        allowed[list(node)] = 0
        return logits + allowed


if __name__ == "__main__":
    sys.exit(main())
