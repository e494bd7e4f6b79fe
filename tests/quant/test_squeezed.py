"""Matrices with codebooks and outliers as files hold them: the same numbers come back, and nothing else is read."""

from collections.abc import Callable

import numpy as np
import pytest

from trimaran.base.errors import CheckpointError
from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.validate import check_outliers
from trimaran.kernels.weights import Weight
from trimaran.quant.codebook import quantise_apart
from trimaran.quant.squeezed import pack_codes, squeeze, squeezed_tensors, unpack_codes

from .stored_files import stored

FORMATS = {4: WeightFormat.CODEBOOK4, 3: WeightFormat.CODEBOOK3}
ROWS, COLS = 6, 96
Leaves = dict[str, np.ndarray]


def weight(bits: int, outliers: int) -> Weight:
    values = np.random.default_rng(bits).standard_t(4, (ROWS, COLS)).astype(np.float32)
    return quantise_apart("layer.proj.weight", values, FORMATS[bits], outliers)


def leaves(bits: int = 4, outliers: int = 3) -> Leaves:
    tensors = squeezed_tensors(ROWS, COLS, bits, outliers)
    arrays = squeeze(weight(bits, outliers))
    assert [array.shape for array in arrays] == [shape for _, shape in tensors.values()]
    assert [array.dtype for array in arrays] == [fmt.dtype for fmt, _ in tensors.values()]
    return dict(zip(tensors, arrays, strict=True))


@pytest.mark.parametrize("outliers", [0, 3])
@pytest.mark.parametrize("bits", FORMATS)
def test_what_was_written_comes_back(bits: int, outliers: int) -> None:
    before, read = weight(bits, outliers), stored(leaves(bits, outliers))
    after = read.on_grid()
    assert (after.fmt, after.shape) == (FORMATS[bits], (ROWS, COLS))
    for field in ("data", "scale", "codebook"):
        np.testing.assert_array_equal(getattr(after, field), getattr(before, field))
    if outliers:
        for field in ("starts", "columns", "values"):
            np.testing.assert_array_equal(getattr(after.outliers, field), getattr(before.outliers, field))
    else:
        assert after.outliers is None
    np.testing.assert_array_equal(read.values(slice(None)), dequantise(before))
    np.testing.assert_array_equal(read.values(slice(2, 5)), dequantise(before)[2:5])


def test_the_first_code_is_lowest() -> None:
    codes = np.array([[1, 2, 3, 4, 5, 6, 7, 0]], np.uint8)
    assert int.from_bytes(pack_codes(codes, 3).tobytes(), "little") == sum(
        int(code) << 3 * place for place, code in enumerate(codes[0])
    )
    assert pack_codes(codes, 4).tobytes() == bytes([0x21, 0x43, 0x65, 0x07])
    for bits in FORMATS:
        np.testing.assert_array_equal(unpack_codes(pack_codes(codes, bits), bits), codes)


def test_matrices_wider_than_16_bits_count_have_wide_columns() -> None:
    tensors = squeezed_tensors(2, 1 << 17, 4, 5)
    assert tensors["weight_outlier_columns"][0] == "I32"
    columns = leaves()["weight_outlier_columns"].astype(np.int32)
    np.testing.assert_array_equal(
        stored(leaves() | {"weight_outlier_columns": columns}).values(slice(None)), stored(leaves()).values(slice(None))
    )


def put(leaf: str, place: tuple[int, int], value: float) -> Callable[[Leaves], Leaves]:
    def change(tensors: Leaves) -> Leaves:
        array = tensors[leaf].copy()
        array[place] = value
        return tensors | {leaf: array}

    return change


WRONG: dict[str, tuple[Callable[[Leaves], Leaves], str]] = {
    "a column past the end": (
        put("weight_outlier_columns", (2, 2), COLS),
        r"layer\.proj\.weight_outlier_columns does not hold ascending columns below 96",
    ),
    "a column twice": (
        lambda t: t | {"weight_outlier_columns": np.zeros((ROWS, 3), np.uint16)},
        "weight_outlier_columns does not hold ascending",
    ),
    "a negative column": (
        lambda t: t | {"weight_outlier_columns": np.full((ROWS, 3), [-1, 0, 1], np.int32)},
        "weight_outlier_columns does not hold ascending",
    ),
    "an outlier that is no number": (
        put("weight_outlier_values", (5, 0), np.nan),
        "weight_outlier_values holds numbers that are not finite",
    ),
    "an infinite scale": (put("weight_scale", (0, 0), np.inf), "weight_scale holds numbers that are not finite"),
    "a level below all": (put("weight_codebook", (1, 0), -128), "weight_codebook holds -128"),
    "columns without values": (
        lambda t: {leaf: array for leaf, array in t.items() if leaf != "weight_outlier_values"},
        "no tensor layer.proj.weight_outlier_values",
    ),
    "values of fewer rows": (
        lambda t: t | {"weight_outlier_values": t["weight_outlier_values"][1:]},
        r"weight_outlier_values has shape \[5, 3\]",
    ),
    "columns of fewer rows": (
        lambda t: t | {"weight_outlier_columns": t["weight_outlier_columns"][1:]},
        "weight_outlier_columns has 5 rows",
    ),
    "codes cut off": (lambda t: t | {"weight_codes": t["weight_codes"][:, :-1]}, "weight_codes has shape"),
    "levels of two bits": (
        lambda t: t | {"weight_codebook": t["weight_codebook"][:, :4].copy()},
        "weight_codebook has 4 levels a row; 16 and 8 are readable",
    ),
    "no codebook": (
        lambda t: {leaf: array for leaf, array in t.items() if leaf != "weight_codebook"},
        "no tensor layer.proj.weight_codebook",
    ),
    "a scale for all": (lambda t: t | {"weight_scale": t["weight_scale"][:1]}, r"weight_scale has shape \[1, 1\]"),
    "wide scales": (
        lambda t: t | {"weight_scale": t["weight_scale"].astype(np.float32)},
        "is stored as F32, not as F16",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_is_named(case: str) -> None:
    change, message = WRONG[case]
    with pytest.raises(CheckpointError, match=message):
        stored(change(leaves()))


def test_random_damage_is_refused_or_harmless() -> None:
    """Bytes, shapes and types at random: either an error that names a tensor, or a weight that executors can trust."""
    rng = np.random.default_rng(0)
    refused = read_well = 0
    for _ in range(300):
        tensors = leaves(int(rng.choice([4, 3])))
        leaf = str(rng.choice(sorted(tensors)))
        array = tensors[leaf]
        match rng.integers(4):
            case 0:
                damaged = np.frombuffer(rng.bytes(array.nbytes), array.dtype).reshape(array.shape)
            case 1:
                damaged = array[: rng.integers(ROWS), : rng.integers(array.shape[1] + 1)]
            case 2:
                damaged = array.reshape(-1) if rng.integers(2) else array.T
            case _:
                damaged = array.astype((np.int8, np.int64, np.float32, np.uint8)[rng.integers(4)])
        try:
            read = stored(tensors | {leaf: damaged})
        except CheckpointError as error:
            refused += "layer.proj.weight_" in str(error)
            continue
        read_well += 1
        held = read.on_grid()
        assert np.isfinite(read.values(slice(None))).all()
        if held.outliers is not None:
            check_outliers("w", held.outliers, *held.shape)
    assert refused + read_well == 300
    assert min(refused, read_well) > 10
