"""What is asked of a model, sequence by sequence: how likely some continuations are, and what it says by itself."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.evaluate.measures import log_probability
from trimaran.evaluate.play import PIECE, Script
from trimaran.evaluate.sequences import Rows, Run


@dataclass(frozen=True)
class Likelihood:
    """Log-probability (nats) of a continuation, and whether greedy decoding would give just it."""

    total: float
    greedy: bool


def likelihoods(context: Sequence[int], options: Sequence[Sequence[int]]) -> Script[list[Likelihood]]:
    """How likely each of ``options`` is after ``context``; neither is empty.

    The context is computed once: options take turns in the pages behind it. All of it but its last token is prefill,
    the rest decode.
    """
    end = len(context)
    if end > 1:
        yield Run(0, context[:-1], prefill=True)
    rows = yield Run(end - 1, context[-1:], wanted=1)
    assert rows.logits is not None
    firsts = np.asarray([[option[0] for option in options]])
    found = [
        Likelihood(float(total), bool(rows.greedy[0] == option[0]))
        for total, option in zip(log_probability(rows.logits, firsts)[0], options, strict=True)
    ]
    for index, option in enumerate(options):
        for at in range(0, len(option) - 1, PIECE):
            piece = option[at : at + PIECE + 1]
            rows = yield Run(end + at, piece[:-1], wanted=len(piece) - 1)
            more = _of_rows(rows, piece[1:])
            found[index] = Likelihood(found[index].total + more.total, found[index].greedy and more.greedy)
    return found


def _of_rows(rows: Rows, targets: Sequence[int]) -> Likelihood:
    assert rows.logits is not None
    wanted = np.asarray(targets)
    total = log_probability(rows.logits, wanted[:, np.newaxis]).sum()
    return Likelihood(float(total), bool((rows.greedy == wanted).all()))


def answer(prompt: Sequence[int], most: int, stops: Collection[int]) -> Script[list[int]]:
    """The model's own greedy continuation of ``prompt``: up to ``most`` tokens, or until one of ``stops``, which is
    left out, as is everything after a row that was not finite."""
    end = len(prompt)
    if end > 1:
        yield Run(0, prompt[:-1], prefill=True)
    said: list[int] = []
    last = prompt[-1]
    while len(said) < most:
        rows = yield Run(end - 1 + len(said), [last], wanted=1, logits=False)
        last = int(rows.greedy[0])
        if last in stops or last < 0:
            break
        said.append(last)
    return said
