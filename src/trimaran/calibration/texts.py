"""Calibration text as a model reads it: rows of tokens, each from the first position on."""

from collections.abc import Sequence

import numpy as np

from trimaran.kernels.program import Buffer, Logits, Program, TakeRows
from trimaran.kernels.reference import last_reads

LENGTH = 512  # tokens of a row
ROWS = 64  # at most: the activations of all are held at once


def cut(ids: Sequence[int], first: Sequence[int]) -> list[list[int]]:
    """``ids`` in rows that begin with ``first``, what the model expects before a text; of a long text the start."""
    step = LENGTH - len(first)
    return [[*first, *ids[at : at + step]] for at in range(0, min(len(ids), ROWS * step), step)]


def mixed(texts: Sequence[Sequence[Sequence[int]]], most: int) -> list[Sequence[int]]:
    """``most`` rows of all ``texts`` in an order that looks random, and is always the same: whatever part of them is
    looked at, it is of all texts."""
    rows = [row for text in texts for row in text]
    return [rows[place] for place in np.random.default_rng(0).permutation(len(rows))[:most].tolist()]


def token_bytes(program: Program) -> int:
    """Bytes of activations that a token takes in a forward without logits, at its widest place."""
    live: set[Buffer] = set()
    widest = 0
    for op, dead in zip(program.ops, last_reads(program.ops), strict=True):
        if isinstance(op, Logits | TakeRows):
            break
        live.add(op.out)
        widest = max(widest, sum(buffer.width for buffer in live))
        live -= set(dead)
    return 4 * widest
