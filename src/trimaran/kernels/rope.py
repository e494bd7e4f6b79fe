"""Rotary position tables, computed once in float64; every executor rotates with the same float32 values."""

import math

import numpy as np
import numpy.typing as npt

from trimaran.kernels.program import LinearScaling, Llama3Scaling, QueryScale, RopeSpec, YarnScaling
from trimaran.kernels.step import Float32


def inverse_frequencies(spec: RopeSpec) -> npt.NDArray[np.float64]:
    """Radians per position of each pair, ``[dims / 2]``: ``theta ** (-2 i / dims)``, scaled as ``spec`` says."""
    assert spec.dims % 2 == 0, spec
    frequencies = spec.theta ** (-np.arange(0, spec.dims, 2, dtype=np.float64) / spec.dims)
    match spec.scaling:
        case Llama3Scaling() as scaling:
            frequencies = _llama3(frequencies, scaling)
        case LinearScaling(factor):
            frequencies = frequencies / factor
        case YarnScaling() as scaling:
            frequencies = _yarn(frequencies, spec, scaling)
    if spec.factors is not None:
        assert len(spec.factors) == spec.dims // 2, spec
        frequencies = frequencies / np.array(spec.factors)
    return frequencies


def rope_table(spec: RopeSpec, positions: int) -> tuple[Float32, Float32]:
    """Cosines and sines ``[positions, dims / 2]`` of ``position * inverse_frequencies(spec)``, with their magnitude."""
    angles = np.arange(positions, dtype=np.float64)[:, None] * inverse_frequencies(spec)
    magnitude = spec.scaling.magnitude if isinstance(spec.scaling, YarnScaling) else 1.0
    return (np.cos(angles) * magnitude).astype(np.float32), (np.sin(angles) * magnitude).astype(np.float32)


def query_scales(spec: QueryScale, positions: npt.NDArray[np.int_]) -> Float32:
    """What queries at ``positions`` are multiplied by after their rotation: 1 within the original context."""
    return (1 + spec.beta * np.log1p(positions // spec.original_context)).astype(np.float32)


def _llama3(frequencies: npt.NDArray[np.float64], scaling: Llama3Scaling) -> npt.NDArray[np.float64]:
    """Source: Llama 3.1 reference code (``apply_scaling``).

    A pair that turns fewer than ``low_freq_factor`` times within the original context is slowed down by ``factor``, one
    that turns more than ``high_freq_factor`` times is kept, and between the two the change is blended linearly.
    """
    turns = scaling.original_context * frequencies / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


def _yarn(frequencies: npt.NDArray[np.float64], spec: RopeSpec, scaling: YarnScaling) -> npt.NDArray[np.float64]:
    """Source: ``_compute_yarn_parameters`` of transformers.

    Pairs that turn more than ``beta_fast`` times within the original context are kept, those that turn fewer than
    ``beta_slow`` times are slowed down by ``factor``; in between the change is linear in the pair's number.
    """

    def pair(turns: float) -> float:
        return spec.dims * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low = max(math.floor(pair(scaling.beta_fast)), 0)
    high = min(math.ceil(pair(scaling.beta_slow)), spec.dims - 1)
    slowed = np.clip((np.arange(spec.dims // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    return frequencies / scaling.factor * slowed + frequencies * (1 - slowed)
