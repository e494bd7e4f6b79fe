"""How far the next-token distributions of two configurations are apart, over texts that both are made to read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trimaran.evaluate.measures import Bool, Float64, divergence, log_softmax, same_top
from trimaran.evaluate.play import PIECE
from trimaran.evaluate.sequences import Run, Sequences

CUTS = (0.25, 0.5, 0.75)  # where a text passes from prefill to decode, as a share of its tokens
FIRST_BUCKET = 64  # tokens; every bucket of positions after it is as long as all before


@dataclass(frozen=True)
class Text:
    """``cut``: so many tokens are prefill, and rows from there on are compared."""

    name: str
    tokens: Sequence[int]
    cut: int = 0


@dataclass(frozen=True)
class Distances:
    """Per compared row of one text: KL(reference || ours) in nats and whether the likeliest token is the same; per row
    but the last, the log-probability of the token that follows."""

    text: Text
    kl: Float64
    same: Bool
    reference: Float64
    ours: Float64


def cut(texts: Sequence[Text]) -> list[Text]:
    """Each text at every one of ``CUTS``: for configurations that prefill in one half and decode in the other."""
    return [
        Text(f"{text.name} from {int(len(text.tokens) * share)}", text.tokens, int(len(text.tokens) * share))
        for text in texts
        for share in CUTS
    ]


def distances(
    reference: Sequences, ours: Sequences, texts: Sequence[Text], progress: Callable[[int], None] = lambda _: None
) -> list[Distances]:
    """Runs every text through both, a few rows at a time so that a large vocabulary takes little memory.

    ``progress`` hears of every text that is done.
    """
    found = []
    for number, text in enumerate(texts, 1):
        found.append(_distances(reference, ours, text))
        progress(number)
    return found


def _distances(reference: Sequences, ours: Sequences, text: Text) -> Distances:
    slots = [(each, _opened(each, text)) for each in (reference, ours)]
    kl, same, targets = [], [], []
    for at in range(text.cut, len(text.tokens), PIECE):
        piece = text.tokens[at : at + PIECE]
        pair = []
        for sequences, slot in slots:
            logits = sequences.step([(slot, Run(at, piece, wanted=len(piece)))])[0].logits
            assert logits is not None
            pair.append(logits)
        p, q = map(log_softmax, pair)
        kl.append(divergence(p, q))
        same.append(same_top(*pair))
        following = np.asarray(text.tokens[at + 1 : at + 1 + len(piece)], np.int64)
        targets.append([each[np.arange(len(following)), following] for each in (p, q)])
    for sequences, slot in slots:
        sequences.free(slot)
    first, second = (np.concatenate(each) for each in zip(*targets, strict=True))
    return Distances(text, np.concatenate(kl), np.concatenate(same), first, second)


def _opened(sequences: Sequences, text: Text) -> int:
    """A slot that has the text up to its cut."""
    slot = sequences.open(len(text.tokens))
    assert slot is not None, "nothing else is open"
    for at in range(0, text.cut, sequences.rows):
        sequences.step([(slot, Run(at, text.tokens[at : min(at + sequences.rows, text.cut)]))], prefill=True)
    sequences.hand_over(slot, text.cut)
    return slot


@dataclass(frozen=True)
class Summary:
    """All texts together. Means are of the texts' means, each text counting the same; p99 and max are over all rows."""

    tokens: int
    mean: float
    p99: float
    max: float
    top1: float
    reference_perplexity: float
    perplexity: float
    texts: dict[str, float]  # mean KL
    positions: dict[int, float]  # mean KL of all rows from this position on, up to the next
    first_mean: float | None  # of the first row after the hand-over
    first_top1: float | None

    @property
    def ratio(self) -> float:
        """Of the perplexities; above 1: ours is worse."""
        return self.perplexity / self.reference_perplexity


def summarise(found: Sequence[Distances]) -> Summary:
    """Of at least one text."""
    kl = np.concatenate([each.kl for each in found])
    at = np.concatenate([np.arange(each.text.cut, len(each.text.tokens)) for each in found])
    bounds = [0, FIRST_BUCKET]
    while bounds[-1] <= at.max():
        bounds.append(2 * bounds[-1])
    inside = {low: kl[(at >= low) & (at < high)] for low, high in pairwise(bounds)}
    handed = [each for each in found if each.text.cut]
    return Summary(
        tokens=len(kl),
        mean=float(np.mean([each.kl.mean() for each in found])),
        p99=float(np.percentile(kl, 99)),
        max=float(kl.max()),
        top1=float(np.mean([each.same.mean() for each in found])),
        reference_perplexity=float(np.exp(-np.mean([each.reference.mean() for each in found]))),
        perplexity=float(np.exp(-np.mean([each.ours.mean() for each in found]))),
        texts={each.text.name: float(each.kl.mean()) for each in found},
        positions={low: float(rows.mean()) for low, rows in inside.items() if len(rows)},
        first_mean=float(np.mean([each.kl[0] for each in handed])) if handed else None,
        first_top1=float(np.mean([each.same[0] for each in handed])) if handed else None,
    )
