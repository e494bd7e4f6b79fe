"""What compressed-tensors and transformers make of compressed matrices (scripts/interop.py) is what is read here."""

import ml_dtypes
import numpy as np
import pytest
from tests.quant.stored_files import GOLDEN, open_file

from trimaran.quant.logical import logical_tensors

CASES = ("int4_group32", "int4_group64", "fp8")


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_the_same_bits(case: str) -> None:
    found = {
        logical.name: logical for logical in logical_tensors(open_file(GOLDEN.with_name("compressed.safetensors")))
    }
    stored, expected = found[f"{case}.weight"].open(), found[f"{case}.expected"].open().values(slice(None))
    assert stored.shape == expected.shape
    assert np.abs(expected).max() > 0
    values = stored.values(slice(None))
    np.testing.assert_array_equal(values.astype(ml_dtypes.bfloat16).astype(np.float32), expected)
