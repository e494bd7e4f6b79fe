"""The values that goldens were computed from come out the same everywhere, and are what files of each type hold."""

import hashlib

import ml_dtypes
import numpy as np
import pytest

from .random_values import TensorSpec, normal, pack_nibbles, tensor, to_bf16, to_e4m3


@pytest.mark.parametrize(
    ("dtype", "digest"),
    [
        ("F32", "2a00b74c98cd6346"),
        ("BF16", "83adc24f2181cc04"),
        ("F8_E4M3", "da4f50092d29ee43"),
        ("I32", "7bf5a9bfaa8d59e1"),
    ],
)
def test_values_are_those_of_the_goldens(dtype: str, digest: str) -> None:
    values = tensor("model", TensorSpec("some.weight", dtype, (3, 32), 1.0, 2.0))
    assert values.shape == (3, 32)
    assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == digest


def test_values_have_the_mean_and_the_spread_that_are_asked_for() -> None:
    values = normal("seed", 100_000)
    assert abs(values.mean()) < 0.02
    assert values.std() == pytest.approx(1, abs=0.02)
    assert np.abs(values).max() < 3.5
    assert not np.array_equal(values[:10], normal("other", 10))


def test_a_copy_has_the_values_of_the_other_tensor() -> None:
    copy = TensorSpec("copy", "BF16", (4, 4), 0.0, 1.0, like="original")
    np.testing.assert_array_equal(tensor("m", copy), tensor("m", TensorSpec("original", "BF16", (4, 4), 0.0, 1.0)))


def test_a_weight_times_its_scale_is_a_bf16_number() -> None:
    scale = tensor("m", TensorSpec("x.weight_scale_inv", "F32", (2, 3), 0.01, 0.002)).astype(np.float64)
    weights = tensor("m", TensorSpec("x.weight", "F8_E4M3", (2, 3), 0.0, 100.0)).view(ml_dtypes.float8_e4m3fn)
    products = weights.astype(np.float64) * scale
    np.testing.assert_array_equal(products.astype(ml_dtypes.bfloat16).astype(np.float64), products)


def test_roundings_are_those_of_ml_dtypes() -> None:
    values = (normal("rounding", 4096) * 130).astype(np.float32)
    np.testing.assert_array_equal(to_bf16(values), values.astype(ml_dtypes.bfloat16).view(np.uint16))
    np.testing.assert_array_equal(to_e4m3(values), values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def test_the_first_nibble_lies_lowest() -> None:
    packed = pack_nibbles(np.array([1, 2, 3, 4, 5, 6, 7, 99, -4, 0, 0, 0, 0, 0, 0, 8], np.float32))
    assert packed.view(np.uint32).tolist() == [0xF7654321, 0x80000000]
