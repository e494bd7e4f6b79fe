"""Which tokens may be drawn, and drawing one: functions on the row of one request.

Rows are handled one at a time, so that a result cannot depend on the batch. A vocabulary has 50k to 250k entries:
nothing here sorts or accumulates a whole row, or allocates one (touching fresh memory costs more than arithmetic).
"""

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]
_BLOCK = 256
_BIN_BITS = 4  # of the mantissa; bins of top_p are sixteenths of an octave


class Scratch:
    """Arrays of one row's length, used again for every row of an engine. Nobody keeps what is in them."""

    def __init__(self, vocab: int) -> None:
        self.scores = np.empty(vocab, np.float32)
        self.weights = np.empty(vocab, np.float32)
        self.exact = np.empty(vocab, np.float64)
        self.bins = np.empty(vocab, np.intp)
        self.mask = np.empty(vocab, np.bool_)


def top_k(scores: Float32, k: int, scratch: Scratch) -> Ids:
    """Indices of the ``k`` largest, best first; equal scores go by the lower index. Uses ``scratch.weights``."""
    n = len(scores)
    if k >= n:
        return np.argsort(-scores, kind="stable")
    parted = scratch.weights[:n]
    parted[:] = scores
    parted.partition(n - k)
    ids = np.flatnonzero(np.greater_equal(scores, parted[n - k], out=scratch.mask[:n]))
    return ids[np.argsort(-scores[ids], kind="stable")][:k]


def top_p(weights: Float32, mass: float, scratch: Scratch) -> np.float32:
    """The lightest weight of the nucleus: tokens at least this heavy are the fewest that hold ``mass`` of the weights'
    sum (Holtzman et al. 2019), and those that tie with the last of them. Weights are at most 1.

    A radix selection: floats of one sign sort as their bits do, so a histogram over the exponent and the first bits of
    the mantissa finds the bin that holds the nucleus' edge, and only that is sorted.
    """
    n = len(weights)
    bins = np.right_shift(weights.view(np.int32), 23 - _BIN_BITS, out=scratch.bins[:n])
    exact = scratch.exact[:n]
    exact[:] = weights
    held = np.cumsum(np.bincount(bins, weights=exact)[::-1])  # by all tokens of this bin and the heavier ones
    target = mass * held[-1]
    place = int(np.searchsorted(held, target))
    edge = np.sort(weights[np.equal(bins, len(held) - 1 - place, out=scratch.mask[:n])])[::-1]
    before = held[place - 1] if place else 0.0
    enough = int(np.searchsorted(before + np.cumsum(edge, dtype=np.float64), target))
    return np.float32(edge[min(enough, len(edge) - 1)])


def keep_heavy(weights: Float32, least: np.float32, scratch: Scratch) -> None:
    """Sets the weights below ``least`` to 0."""
    weights *= np.greater_equal(weights, least, out=scratch.mask[: len(weights)])


def uniform(key: int, position: int) -> float:
    """A number in [0, 1) that depends on its arguments alone: Philox (Salmon et al. 2011), the position as counter."""
    raw = np.random.Philox(key=key, counter=position).random_raw()
    return float(raw >> 11) * 2.0**-53


def draw(weights: Float32, u: float) -> int:
    """The index at which the running sum of ``weights`` passes ``u`` times their total; never one of weight 0."""
    blocks = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)), dtype=np.float64)
    target = u * blocks[-1]
    block = min(int(np.searchsorted(blocks, target, side="right")), len(blocks) - 1)
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    before = blocks[block - 1] if block else 0.0
    index = int(np.searchsorted(before + np.cumsum(inside, dtype=np.float64), target, side="right"))
    last = int(np.flatnonzero(inside)[-1])  # rounding may carry the target past the end of its block
    return block * _BLOCK + min(index, last)
