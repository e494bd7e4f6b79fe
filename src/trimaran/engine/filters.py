"""Which tokens may be drawn, and drawing one: pure functions on the row of one request.

Rows are handled one at a time, so that a result cannot depend on the batch. Vocabularies have 50k to 250k entries:
nothing here sorts or accumulates a whole row.
"""

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]
_BLOCK = 256


def top_k(scores: Float32, k: int) -> Ids:
    """Indices of the ``k`` largest, best first; equal scores go by the lower index."""
    n = len(scores)
    if k >= n:
        return np.argsort(-scores, kind="stable")
    bound = np.partition(scores, n - k)[n - k]
    ids = np.flatnonzero(scores >= bound)
    return ids[np.argsort(-scores[ids], kind="stable")][:k]


def top_p(weights: Float32, mass: float) -> Ids:
    """The smallest set of indices that holds at least ``mass`` of the weights' sum, heaviest first (nucleus sampling,
    Holtzman et al. 2019).

    Weights of at most ``slack / n``, with ``slack = (1 - mass) * sum``, sum to at most ``slack``: none is needed. That
    leaves few enough to sort, most often after a second round with the slack that the first one did not use.
    """
    total = float(weights.sum(dtype=np.float64))
    slack, ids, heavy = (1.0 - mass) * total, np.arange(len(weights)), weights
    while True:
        chosen = np.flatnonzero(heavy > slack / len(ids))
        if not 0 < len(chosen) <= len(ids) // 2:
            break
        slack -= float(heavy.sum(dtype=np.float64))
        ids, heavy = ids[chosen], heavy[chosen]
        slack += float(heavy.sum(dtype=np.float64))
    order = np.argsort(-heavy, kind="stable")
    enough = int(np.searchsorted(np.cumsum(heavy[order], dtype=np.float64), mass * total)) + 1
    return ids[order[:enough]]


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
    # Rounding may carry the target past the end of its block.
    last = int(np.flatnonzero(inside)[-1])
    return block * _BLOCK + min(index, last)
