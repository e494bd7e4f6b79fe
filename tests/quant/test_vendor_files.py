"""Every layout of the golden file stands for the numbers that the vendor's own library computes."""

import ml_dtypes
import numpy as np
import pytest

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.quant import rows
from trimaran.quant.convert import to_weight
from trimaran.quant.logical import logical_tensors
from trimaran.quant.stored import Stored

from .stored_files import GOLDEN, open_file

HELD = {  # by default, and how far from the stored numbers on average (root mean square, relative)
    "int4_group32": ("int4", 2e-3),  # what bf16 rounds off a product; the codes and scales are the same
    "int4_group64_fp16": ("int4", 2e-4),
    "int4_group64_zero": ("int4z", 2e-3),
    "int4_channel_odd": ("bf16", 0),
    "int4_channel_fp32": ("int4", 3e-4),
    "int8_group64": ("int8", 2e-3),
    "int8_group32_zero": ("int8", 6e-3),
    "w8_channel": ("int8", 1e-7),
    "w8_tensor": ("int8", 1e-7),
    "w8_channel_zero": ("int8", 6e-3),
    "fp8_channel": ("int8", 6e-3),
    "fp8_tensor": ("int8", 6e-3),
    "fp8_block": ("bf16", 2e-3),  # 130 columns have no groups of 32
    "fp8_powers": ("int8", 6e-3),
    "fp8_e5m2": ("int8", 6e-3),
    "awq_group32": ("int4z", 4e-4),
    "awq_channel": ("int4z", 4e-4),
}
EXACT = ("w8", "fp8")  # kinds whose scales the library rounds to a product in bf16, and kernels apply to the sum


@pytest.fixture(scope="module")
def cases() -> dict[str, tuple[Stored, Stored]]:
    """By case: the stored matrix, and what the library made of it."""
    found = {logical.name: logical for logical in logical_tensors(open_file(GOLDEN))}
    return {case: (found[f"{case}.weight"].open(), found[f"{case}.expected"].open()) for case in HELD}


@pytest.mark.parametrize("case", HELD)
def test_the_numbers_are_the_librarys(case: str, cases: dict[str, tuple[Stored, Stored]]) -> None:
    stored, expected = cases[case]
    values, theirs = to_weight(stored, WeightFormat.FP32).data, expected.values(slice(None))
    assert stored.shape == theirs.shape
    if case.startswith(EXACT) and expected.grid() is WeightFormat.BF16:
        values = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(values, theirs)


@pytest.mark.parametrize("case", HELD)
def test_the_format_it_is_held_in_by_default(case: str, cases: dict[str, tuple[Stored, Stored]]) -> None:
    stored, _ = cases[case]
    fmt, most = HELD[case]
    weight = to_weight(stored, None)
    exact = stored.values(slice(None))
    assert (weight.name, weight.shape, weight.fmt) == (f"{case}.weight", stored.shape, fmt)
    error = np.linalg.norm(dequantise(weight) - exact) / np.linalg.norm(exact)
    assert error <= most


@pytest.mark.parametrize("target", list(WeightFormat))
@pytest.mark.parametrize("case", [case for case in HELD if HELD[case][0] != "bf16"])
def test_any_format_can_be_asked_for_and_pieces_change_nothing(
    case: str, target: WeightFormat, cases: dict[str, tuple[Stored, Stored]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, _ = cases[case]
    weight = to_weight(stored, target)
    assert weight.fmt is target
    exact = stored.values(slice(None))
    error = np.linalg.norm(dequantise(weight) - exact) / np.linalg.norm(exact)
    most = {"fp32": 1e-9, "bf16": 2e-3, "int8": 8e-3, "int4": 0.12, "int4z": 0.12, "fp8": 0.03}
    assert error < (most | {"codebook4": 0.14, "codebook3": 0.27})[target]
    monkeypatch.setattr(rows, "_PIECE", 3 * stored.shape[1])  # three rows; AutoAWQ's words hold eight
    np.testing.assert_array_equal(dequantise(to_weight(stored, target)), dequantise(weight))


@pytest.mark.parametrize("case", [case for case in HELD if HELD[case][0] == "int4"])
def test_symmetric_int4_keeps_its_codes_in_wider_integers(case: str, cases: dict[str, tuple[Stored, Stored]]) -> None:
    stored, _ = cases[case]
    narrow = dequantise(to_weight(stored, WeightFormat.INT4))
    for wider in (WeightFormat.INT4Z, WeightFormat.INT8):
        np.testing.assert_array_equal(dequantise(to_weight(stored, wider)), narrow)
