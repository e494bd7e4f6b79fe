"""Codebooks with compensation: outputs are closer, levels and outliers are those of the row."""

import numpy as np
import pytest

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise, unpack_nibbles
from trimaran.kernels.step import Float32
from trimaran.quant.codebook import quantise_apart
from trimaran.quant.compensated import Factor, factor
from trimaran.quant.compensated_levels import quantise_together

from .test_compensated import correlated, off

WEIGHTS = np.random.default_rng(1).standard_t(4, (48, 256)).astype(np.float32)
CODEBOOKS = (WeightFormat.CODEBOOK4, WeightFormat.CODEBOOK3)


def ordered(x: Float32) -> Factor:
    moments = x.T @ x
    return factor(moments, np.argsort(-np.diagonal(moments)))


@pytest.mark.parametrize("fmt", CODEBOOKS)
@pytest.mark.parametrize("count", [0, 3])
def test_outputs_for_tokens_not_seen_are_closer(fmt: WeightFormat, count: int) -> None:
    x = correlated(2048, 256)
    x *= np.exp(np.random.default_rng(2).normal(0, 1, 256)).astype(np.float32)
    together = quantise_together("w", WEIGHTS, fmt, count, ordered(x[:1536]))
    alone = quantise_apart("w", WEIGHTS, fmt, count, np.square(x[:1536]).mean(axis=0))
    unseen = x[1536:]
    assert off(unseen, WEIGHTS - dequantise(together)) < off(unseen, WEIGHTS - dequantise(alone)) / 3


@pytest.mark.parametrize("fmt", CODEBOOKS)
def test_inputs_that_are_not_correlated_change_nothing(fmt: WeightFormat) -> None:
    """In whatever order they are rounded."""
    order = np.random.default_rng(3).permutation(256)
    together = quantise_together("w", WEIGHTS, fmt, 3, factor(np.eye(256, dtype=np.float32), order))
    alone = quantise_apart("w", WEIGHTS, fmt, 3)
    np.testing.assert_array_equal(together.codebook, alone.codebook)
    np.testing.assert_allclose(dequantise(together), dequantise(alone), rtol=2e-3, atol=2e-3)
    same = unpack_nibbles(together.data.view(np.uint8)) == unpack_nibbles(alone.data.view(np.uint8))
    assert same.mean() > 0.98  # outliers lie near levels of their own, then near zero


def test_rows_of_zeros_stay_and_rows_do_not_depend_on_each_other() -> None:
    weights = WEIGHTS.copy()
    weights[3] = 0
    found = ordered(correlated(300, 256))
    whole = dequantise(quantise_together("w", weights, WeightFormat.CODEBOOK4, 2, found))
    np.testing.assert_array_equal(whole[3], 0)
    alone = dequantise(quantise_together("w", weights[5:6], WeightFormat.CODEBOOK4, 2, found))
    np.testing.assert_allclose(alone[0], whole[5], rtol=0, atol=1e-3)
