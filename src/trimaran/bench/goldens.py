"""Golden next-token distributions, and how far an executor's logits are from them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import CheckpointError
from trimaran.evaluate.measures import Float32, Float64, divergence, log_softmax


@dataclass(frozen=True)
class Golden:
    """What an independent float32 forward says of one text of N tokens; written by ``scripts/goldens.py``.

    For each position the K most likely next tokens are kept, and S of the others, drawn by their probability, stand for
    all of them.
    """

    name: str
    tokens: npt.NDArray[np.int32]  # [N]
    ids: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]  # [N, K], best first
    logprobs: Float32  # [N, K]
    rest: Float32  # [N], log of the mass of all other tokens
    drawn: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]  # [N, S], some of the others
    drawn_logprobs: Float32  # [N, S]
    target: Float32  # [N - 1], log-probability of the token that follows

    def first(self, count: int) -> "Golden":
        """The same text cut to its first ``count`` tokens."""
        return Golden(
            self.name,
            self.tokens[:count],
            self.ids[:count],
            self.logprobs[:count],
            self.rest[:count],
            self.drawn[:count],
            self.drawn_logprobs[:count],
            self.target[: count - 1],
        )


@dataclass(frozen=True)
class Score:
    """Distances over one text; ``kl`` is KL(golden || ours) in nats per position."""

    name: str
    tokens: int
    mean_kl: float
    max_kl: float
    agreement: float  # share of positions with the same arg-max
    disagreements: tuple[tuple[int, float], ...]  # (position, log-probability between golden's first and second)
    golden_perplexity: float
    perplexity: float
    full_kl: float | None = None  # mean over the whole vocabulary, where the full golden logits are at hand

    @property
    def perplexity_ratio(self) -> float:
        return self.perplexity / self.golden_perplexity


def load_goldens(folder: Path, model: str) -> list[Golden]:
    """All goldens of ``model`` in ``folder``; raises ``CheckpointError`` when there are none."""
    paths = sorted(folder.glob(f"{model}-*.npz"))
    if not paths:
        raise CheckpointError(f"no golden logits {model}-*.npz in {folder}; `make goldens` writes them")
    goldens = []
    for path in paths:
        with np.load(path) as arrays:
            goldens.append(Golden(path.stem.removeprefix(f"{model}-"), **arrays))
    return goldens


def score(golden: Golden, chunks: Iterable[Float32], full: Float32 | None = None) -> Score:
    """Compares logits, given as consecutive ``[rows, vocab]`` chunks of the text, with ``golden``.

    ``full`` ``[N, vocab]`` are the golden logits themselves, for the KL over the whole vocabulary.
    """
    kl: list[Float64] = []
    full_kl: list[Float64] = []
    best: list[npt.NDArray[np.int64]] = []
    target: list[Float64] = []
    start = 0
    for logits in chunks:
        rows = slice(start, start := start + len(logits))
        logprobs = log_softmax(logits)
        kl.append(estimate_kl(golden, rows, logprobs))
        best.append(logits.argmax(axis=1))
        following = golden.tokens[rows.start + 1 : rows.stop + 1]
        target.append(logprobs[np.arange(len(following)), following])
        if full is not None:
            full_kl.append(divergence(log_softmax(full[rows]), logprobs))
    assert start == len(golden.tokens), "as many logits as tokens"
    differ = np.flatnonzero(np.concatenate(best) != golden.ids[:, 0])
    margins = golden.logprobs[differ, 0] - golden.logprobs[differ, 1]
    distances = np.concatenate(kl)
    return Score(
        name=golden.name,
        tokens=start,
        mean_kl=float(distances.mean()),
        max_kl=float(distances.max()),
        agreement=1 - len(differ) / start,
        disagreements=tuple((int(at), float(margin)) for at, margin in zip(differ, margins, strict=True)),
        golden_perplexity=float(np.exp(-golden.target.mean(dtype=np.float64))),
        perplexity=float(np.exp(-np.concatenate(target).mean())),
        full_kl=float(np.concatenate(full_kl).mean()) if full is not None else None,
    )


def estimate_kl(golden: Golden, rows: slice, ours: Float64) -> Float64:
    """KL(golden || ours) ``[rows]`` for our log-probabilities ``[rows, vocab]``.

    It is exact over the kept tokens and an unbiased estimate over the others. With r = q / p these add sum p (-log r) =
    sum p (r - 1 - log r) + P - Q, where P and Q are their masses. Both masses are known exactly, and the sum has small,
    non-negative terms, so that a few draws estimate it well (Schulman, "Approximating KL Divergence", 2020).
    """
    ids = golden.ids[rows].astype(np.int64)
    kept, others = np.take_along_axis(ours, ids, axis=1), ours.copy()
    np.put_along_axis(others, ids, -np.inf, axis=1)
    log_p = golden.logprobs[rows].astype(np.float64)
    log_r = np.take_along_axis(ours, golden.drawn[rows].astype(np.int64), axis=1) - golden.drawn_logprobs[rows]
    mass, our_mass = np.exp(golden.rest[rows].astype(np.float64)), np.exp(others).sum(axis=1)
    drawn = (np.expm1(log_r) - log_r).mean(axis=1)
    return np.asarray((np.exp(log_p) * (log_p - kept)).sum(axis=1) + mass * drawn + mass - our_mass, np.float64)
