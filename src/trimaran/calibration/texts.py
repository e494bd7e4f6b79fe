"""Calibration text as a model reads it: rows of tokens, each from the first position on."""

from collections.abc import Sequence

LENGTH = 512  # tokens of a row
ROWS = 64  # at most: the activations of all are held at once


def cut(ids: Sequence[int], first: Sequence[int]) -> list[list[int]]:
    """``ids`` in rows that begin with ``first``, what the model expects before a text; of a long text the start."""
    step = LENGTH - len(first)
    return [[*first, *ids[at : at + step]] for at in range(0, min(len(ids), ROWS * step), step)]
