"""Rotary tables against the published code and hand-computed values."""

import math

import numpy as np
import pytest

from trimaran.kernels.program import Llama3Scaling, RopeSpec
from trimaran.kernels.rope import inverse_frequencies, rope_table


def test_frequencies_fall_geometrically() -> None:
    np.testing.assert_allclose(inverse_frequencies(RopeSpec(10000.0, 8)), [1, 0.1, 0.01, 0.001], rtol=1e-15)


def test_llama3_scaling_as_in_the_published_code() -> None:
    spec = RopeSpec(500000.0, 128, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    expected = []
    for frequency in inverse_frequencies(RopeSpec(500000.0, 128)):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4.0:
            expected.append(frequency)
        elif wavelength > 8192 / 1.0:
            expected.append(frequency / 8.0)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            expected.append((1 - smooth) * frequency / 8.0 + smooth * frequency)
    scaled = inverse_frequencies(spec)
    np.testing.assert_allclose(scaled, expected, rtol=1e-14)
    blended = (scaled < inverse_frequencies(RopeSpec(500000.0, 128))) & (
        scaled * 8 > inverse_frequencies(RopeSpec(500000.0, 128))
    )
    assert blended.sum() > 2  # the middle branch is exercised


def test_factors_divide_each_frequency() -> None:
    plain = inverse_frequencies(RopeSpec(10000.0, 6))
    factored = inverse_frequencies(RopeSpec(10000.0, 6, factors=(1.0, 2.0, 8.0)))
    np.testing.assert_allclose(factored * [1, 2, 8], plain, rtol=1e-15)


def test_table_is_exact_at_far_positions() -> None:
    cos, sin = rope_table(RopeSpec(100.0, 4), 100_001)
    assert cos.dtype == sin.dtype == np.float32
    assert cos.shape == sin.shape == (100_001, 2)
    assert cos[0].tolist() == [1, 1]
    assert cos[100_000, 0] == np.float32(math.cos(100_000))
    assert sin[100_000, 1] == pytest.approx(math.sin(10_000), abs=1e-7)
