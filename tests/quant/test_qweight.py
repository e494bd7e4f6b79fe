"""GPTQ and AutoAWQ, packed here one number at a time from what the formats' own packers do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.quant.convert import to_weight

from .stored_files import stored, words

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
ALL = slice(None)


class Gptq:
    """Random codes ``[inputs, outputs]``; input ``i`` is of group ``order[i]``."""

    def __init__(self, inputs: int, outputs: int, groups: int, bits: int = 4, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.bits = bits
        self.codes = rng.integers(0, 1 << bits, (inputs, outputs))
        self.zeros = rng.integers(1, 1 << bits, (groups, outputs))
        self.scales = rng.uniform(0.001, 0.01, (groups, outputs)).astype(np.float16)
        self.order = np.arange(inputs) // (inputs // groups)

    def files(self, offset: int = 1) -> dict[str, np.ndarray]:
        return {
            "qweight": words(self.codes.T, self.bits).T,
            "qzeros": words(self.zeros - offset, self.bits),
            "scales": self.scales,
            "g_idx": self.order.astype(np.int32),
        }

    def values(self) -> np.ndarray:
        """``[outputs, inputs]``, each product in half precision."""
        difference = (self.codes - self.zeros[self.order]).astype(np.float16)
        return (difference * self.scales[self.order]).T.astype(np.float32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_gptq_of_the_first_format_stores_zero_points_less_one(bits: int, groups: int) -> None:
    case = Gptq(128, 16, groups, bits)
    np.testing.assert_array_equal(stored(case.files(), quant_method="gptq").values(ALL), case.values())


def test_gptq_of_the_second_format_stores_them_as_they_are() -> None:
    case = Gptq(64, 8, 2)
    files = case.files(offset=0)
    read = stored(files, quant_method="gptq", checkpoint_format="gptq_v2")
    np.testing.assert_array_equal(read.values(ALL), case.values())
    assert not np.array_equal(stored(files, quant_method="gptq").values(ALL), case.values())


def test_a_zero_point_of_0_borrowed_from_its_neighbour() -> None:
    """GPTQModel goes from the second format to the first by subtracting from whole words."""
    case = Gptq(64, 16, 2)
    case.zeros[:, ::3] = 0
    files = case.files()
    files["qzeros"] = (words(case.zeros, 4).view(np.uint32) - np.uint32(0x11111111)).view(np.int32)
    np.testing.assert_array_equal(stored(files, quant_method="gptq").values(ALL), case.values())


def test_gptq_in_the_order_of_activations() -> None:
    case = Gptq(64, 8, 2)
    plain = stored(case.files(), quant_method="gptq")
    assert plain.grid() is WeightFormat.INT4Z
    case.order = np.random.default_rng(5).permutation(case.order)
    mixed = stored(case.files(), quant_method="gptq")
    np.testing.assert_array_equal(mixed.values(ALL), case.values())
    assert mixed.grid() is None  # a group's inputs are not neighbours: no format holds that
    assert to_weight(mixed, None).fmt is WeightFormat.INT8
    uneven = Gptq(64, 8, 2)
    uneven.order = np.array([1] * 10 + [0] * 54)
    np.testing.assert_array_equal(stored(uneven.files(), quant_method="gptq").values(ALL), uneven.values())


@pytest.mark.parametrize(("bits", "held"), [(4, WeightFormat.INT4), (8, WeightFormat.INT8)])
def test_symmetric_gptq_keeps_its_codes(bits: int, held: WeightFormat) -> None:
    case = Gptq(128, 16, 2, bits)
    case.zeros[:] = 1 << (bits - 1)
    weight = to_weight(stored(case.files(), quant_method="gptq"), None)
    assert weight.fmt is held
    exact = (case.codes.T - (1 << (bits - 1))) * case.scales[case.order].T.astype(np.float32)
    np.testing.assert_array_equal(dequantise(weight), exact.astype(np.float32))


def awq_words(codes: np.ndarray) -> np.ndarray:
    shuffled = codes.reshape(len(codes), -1, 8)[:, :, AWQ_ORDER]
    return words(shuffled.reshape(codes.shape), 4)


@settings(max_examples=30, deadline=None)
@given(groups=st.integers(1, 3), size=st.sampled_from([8, 32, 64]), columns=st.integers(1, 5), seed=st.integers(0, 99))
def test_awq_round_trip(groups: int, size: int, columns: int, seed: int) -> None:
    case = Gptq(groups * size, 8 * columns, groups, seed=seed)
    files = {"qweight": awq_words(case.codes), "qzeros": awq_words(case.zeros), "scales": case.scales}
    read = stored(files, quant_method="awq", version="gemm")
    np.testing.assert_array_equal(read.values(ALL), case.values())
    some = slice(3, 8 * columns - 1)
    np.testing.assert_array_equal(read.values(some), case.values()[some])


def test_zero_points_cost_less_than_a_second_rounding() -> None:
    """int4z rounds only the minimum of a group to fp16: far better than int8, in half the bytes."""
    case = Gptq(512, 64, 4)
    read, exact = stored(case.files(), quant_method="gptq"), case.values()
    errors = {
        fmt: np.linalg.norm(dequantise(to_weight(read, fmt)) - exact) / np.linalg.norm(exact)
        for fmt in (WeightFormat.INT4Z, WeightFormat.INT8)
    }
    assert to_weight(read, None).fmt is WeightFormat.INT4Z
    assert errors[WeightFormat.INT4Z] < 0.1 * errors[WeightFormat.INT8]


def changed(**arrays: np.ndarray | None) -> dict[str, np.ndarray]:
    files: dict[str, np.ndarray | None] = {**Gptq(64, 16, 2).files(), **arrays}
    return {leaf: array for leaf, array in files.items() if array is not None}


WRONG = {
    "no zero points": (changed(qzeros=None), r"no tensor layer\.proj\.qzeros"),
    "no scales": (changed(scales=None), r"no tensor layer\.proj\.scales"),
    "float zero points": (changed(qzeros=np.zeros((2, 2), np.float32)), r"qzeros is stored as F32, not as I32"),
    "integer scales": (changed(scales=np.zeros((2, 16), np.int32)), r"scales is stored as I32"),
    "infinite scales": (changed(scales=np.full((2, 16), np.inf, np.float16)), "scales holds scales that are infinite"),
    "scales of one dimension": (changed(scales=np.ones(16, np.float16)), r"scales has shape \[16\]"),
    "no groups": (changed(scales=np.ones((0, 16), np.float16)), r"scales has shape \[0, 16\]"),
    "more groups than zero points": (changed(scales=np.ones((4, 16), np.float16)), r"qzeros has shape \[2, 2\]"),
    "groups that do not divide": (
        changed(scales=np.ones((3, 16), np.float16), qzeros=np.zeros((3, 2), np.int32), g_idx=None),
        "scales has 3 groups, which do not divide 64 inputs",
    ),
    "more groups than inputs": (
        changed(scales=np.ones((999, 16), np.float16), qzeros=np.zeros((999, 2), np.int32), g_idx=None),
        "999 groups",
    ),
    "a group too many": (changed(g_idx=np.full(64, 2, np.int32)), "g_idx names groups 2 to 2, but there are 2"),
    "a negative group": (changed(g_idx=np.array([-1] + [0] * 63, np.int32)), "g_idx names groups -1 to 0"),
    "too few inputs": (changed(g_idx=np.zeros(63, np.int32)), r"g_idx has shape \[63\]"),
    "words of no layout": (changed(qweight=np.zeros((8, 5), np.int32)), r"qweight has shape \[8, 5\]"),
    "words of one dimension": (changed(qweight=np.zeros(8, np.int32)), r"qweight has shape \[8\], which is no matrix"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_is_named(case: str) -> None:
    files, message = WRONG[case]
    with pytest.raises(CheckpointError, match=message):
        stored(files, quant_method="gptq")


@pytest.mark.parametrize("bits", [2, 3])
def test_other_widths_are_refused(bits: int) -> None:
    case = Gptq(64, 32, 2, bits)
    with pytest.raises(UnsupportedError, match=rf"layer\.proj\.weight has weights of {bits} bits"):
        stored(case.files(), quant_method="gptq")
