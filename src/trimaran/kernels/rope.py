"""Rotary position tables, computed once in float64; every executor rotates with the same float32 values."""

import math

import numpy as np
import numpy.typing as npt

from trimaran.kernels.program import RopeScaling, RopeSpec
from trimaran.kernels.step import Float32


def inverse_frequencies(spec: RopeSpec) -> npt.NDArray[np.float64]:
    """Radians per position of each pair, ``[dims / 2]``: ``theta ** (-2 i / dims)``, scaled as ``spec`` says."""
    assert spec.dims % 2 == 0, spec
    frequencies = spec.theta ** (-np.arange(0, spec.dims, 2, dtype=np.float64) / spec.dims)
    if spec.scaling is not None:
        frequencies = _llama3(frequencies, spec.scaling)
    if spec.factors is not None:
        assert len(spec.factors) == spec.dims // 2, spec
        frequencies = frequencies / np.array(spec.factors)
    return frequencies


def rope_table(spec: RopeSpec, positions: int) -> tuple[Float32, Float32]:
    """Cosines and sines ``[positions, dims / 2]`` of ``position * inverse_frequencies(spec)``."""
    angles = np.arange(positions, dtype=np.float64)[:, None] * inverse_frequencies(spec)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _llama3(frequencies: npt.NDArray[np.float64], scaling: RopeScaling) -> npt.NDArray[np.float64]:
    """Source: Llama 3.1 reference code (``apply_scaling``).

    A pair that turns fewer than ``low_freq_factor`` times within the original context is slowed down by ``factor``, one
    that turns more than ``high_freq_factor`` times is kept, and between the two the change is blended linearly.
    """
    turns = scaling.original_context * frequencies / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies
