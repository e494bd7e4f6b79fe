"""One request for ``n`` choices as ``n`` requests for one; the prefix cache computes their prompt once."""

import msgspec

from trimaran.base.sampling import SamplingParams

_SEEDS = 1 << 64


def fan_out(sampling: SamplingParams) -> list[SamplingParams]:
    """What the engine gets for each choice.

    Choice ``i`` draws with ``seed + i`` (as in vLLM), or the choices would be equal; past the largest seed it goes on
    at the smallest. Stop strings stay with the caller: the engine knows tokens, not text.
    """
    seeds = [None if sampling.seed is None else _wrap(sampling.seed + index) for index in range(sampling.n)]
    return [msgspec.structs.replace(sampling, n=1, seed=seed, stop=()) for seed in seeds]


def _wrap(seed: int) -> int:
    return (seed + _SEEDS // 2) % _SEEDS - _SEEDS // 2
