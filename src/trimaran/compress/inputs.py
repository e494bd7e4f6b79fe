"""What a matrix is multiplied with: what rounding needs to know of it, from calibration text."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trimaran.compress.recipe import CompensatingRecipe
from trimaran.kernels.step import Float32
from trimaran.quant.compensated import Factor, factor

_FEWEST = 64  # tokens that say something about a matrix's inputs
_HELD_OUT = 8  # one in so many tokens, the last of each part
_MOST_HELD_OUT = 1024  # tokens, after which all are seen


@dataclass(frozen=True)
class Inputs:
    """``factor`` is of most tokens; ``None`` where they are few or make none. ``held_out`` are others' inputs, and
    ``exact`` those that they have in the model as it was."""

    factor: Factor | None
    held_out: Float32
    exact: Float32

    @classmethod
    def of(cls, parts: Iterable[tuple[Float32, Float32 | None]], recipe: CompensatingRecipe) -> "Inputs":
        """``parts`` of the tokens: their inputs in the compressed model, and those in the model as it was, or ``None``
        where the matrix does not meet the same tokens in both."""
        moments: Float32 | None = None
        lost: Float32 | None = None
        held_out: list[Float32] = []
        compared: list[Float32] = []
        tokens = kept = 0
        for inputs, exact in parts:
            shares = _shares(inputs)
            inputs = inputs * shares
            exact = inputs if exact is None else exact * shares
            cut = len(inputs) - min(len(inputs) // _HELD_OUT, _MOST_HELD_OUT - kept)
            held_out.append(inputs[cut:].copy())
            compared.append(exact[cut:].copy())
            tokens, kept = tokens + len(inputs), kept + len(inputs) - cut
            seen = inputs[:cut]
            moments = _add(moments, seen, seen)
            if exact is not inputs:
                lost = _add(lost, exact[:cut] - seen, seen)
        assert moments is not None, "there is text"
        others, as_they_were = np.concatenate(held_out), np.concatenate(compared)
        found = _factor(moments, lost, recipe) if tokens >= _FEWEST else None
        if found is not None and found.drift is not None:
            found.drift[:] *= _share_that_holds(others @ found.drift.T, as_they_were - others)
        return cls(found, others, as_they_were)


def _factor(moments: Float32, lost: Float32 | None, recipe: CompensatingRecipe) -> Factor | None:
    try:
        return factor(moments, recipe.order(moments), lost)
    except np.linalg.LinAlgError:
        return None


def _add(total: Float32 | None, left: Float32, right: Float32) -> Float32:
    if total is None:
        return left.T @ right
    for at in range(0, len(total), _STRIP):
        total[at : at + _STRIP] += left[:, at : at + _STRIP].T @ right
    return total


_STRIP = 1024  # rows that are added to at a time


def _shares(inputs: Float32) -> Float32:
    """How much each token counts ``[tokens, 1]``, no more than the median one: some (the first of a text, above all)
    have inputs hundreds of times larger, which the next norm takes away again."""
    if not len(inputs):
        return np.ones((0, 1), np.float32)
    squares = np.einsum("ij,ij->i", inputs, inputs)
    most = np.sqrt(np.median(squares) / np.maximum(squares, np.finfo(np.float32).tiny))
    shares: Float32 = np.minimum(most, 1).astype(np.float32)[:, None]
    return shares


def _share_that_holds(found: Float32, true: Float32) -> np.float32:
    """Of what was found for the tokens that were seen, the share that is nearest to what is true for others."""
    below = float(np.square(found).sum(dtype=np.float64))
    return np.float32(np.clip(float((found * true).sum(dtype=np.float64)) / below, 0, 1) if below else 0)
