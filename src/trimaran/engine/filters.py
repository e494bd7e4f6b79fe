"""Which tokens may be drawn, and drawing one: the definition, on the row of one request.

The compiled sampler (``csrc/sampler.cpp``) finds the same bits without sorting. That is possible because a weight is a
multiple of 2^-34: up to 2^19 of them, none above 1, add up exactly in float64, whatever the order.
"""

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.intp]

LOG2E = 1.4426950408889634
_COLDEST = 1e-6  # a temperature that float32 divides by without overflow; colder is greedy in effect
_EXP2 = (
    0.00132647273,
    0.00967151299,
    0.0555073358,
    0.240222424,
    0.693147004,
    1.0,
)  # on [-1/2, 1/2], highest power first
_COARSE = np.float32(2.0**-11)  # from here to twice of it, floats lie 2^-34 apart


def sharpness(temperature: float) -> float:
    """What differences of scores are multiplied with to become powers of two."""
    return LOG2E / max(temperature, _COLDEST)


def weigh(scores: Float32, factor: float) -> Float32:
    """``2^((scores - max) * factor)`` to about 2e-7 relative, then rounded to a multiple of 2^-34; the heaviest is 1.

    Only operations that IEEE 754 defines, one after the other: the result is the same on every machine.
    """
    with np.errstate(over="ignore"):  # -infinity will do
        x = (scores - scores.max()) * np.float32(factor)
    x = np.maximum(x, np.float32(-64))
    whole = np.rint(x)
    part = x - whole
    power = np.full_like(x, _EXP2[0])
    for coefficient in _EXP2[1:]:
        power = power * part + np.float32(coefficient)
    weights: Float32 = np.ldexp(power, whole.astype(np.int32))
    return np.where(weights < _COARSE, (weights + _COARSE) - _COARSE, weights)


def top_k(scores: Float32, k: int) -> Ids:
    """Indices of the ``k`` largest, best first; equal scores go by the lower index."""
    return np.argsort(-scores, kind="stable")[:k]


def top_p(weights: Float32, mass: float) -> np.float32:
    """The lightest weight of the nucleus: tokens at least this heavy are the fewest that hold ``mass`` of the weights'
    sum (Holtzman et al. 2019), and those that tie with the last of them."""
    falling = np.sort(weights)[::-1]
    held = np.cumsum(falling, dtype=np.float64)
    return np.float32(falling[np.searchsorted(held, mass * held[-1])])


def uniform(key: int, position: int) -> float:
    """A number in [0, 1) that depends on its arguments alone: Philox (Salmon et al. 2011), the position as counter."""
    raw = np.random.Philox(key=key, counter=position).random_raw()
    return float(raw >> 11) * 2.0**-53


def draw(weights: Float32, u: float) -> int:
    """The index at which the running sum of ``weights`` passes ``u`` times their total; never one of weight 0."""
    running = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(running, u * running[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))  # rounding may carry the target up to the total
