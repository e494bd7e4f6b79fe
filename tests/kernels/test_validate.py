"""Invalid options, weights and steps are refused with a text that says what is wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trimaran.base.errors import CheckpointError, ConfigError
from trimaran.base.formats import WeightFormat
from trimaran.kernels.step import ExecutorOptions
from trimaran.kernels.validate import check_options, check_outliers, check_step, check_weights
from trimaran.kernels.weights import Outliers
from trimaran.quant.convert import quantise

from .tiny import Rows, program, random_weights, step

OPTIONS = ExecutorOptions(num_pages=20, max_rows=64, max_sequences=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_size": 24}, "page_size must be a positive multiple of 16, not 24"),
        ({"page_size": 0}, "page_size"),
        ({"num_pages": 1}, "num_pages"),
        ({"max_rows": 0}, "max_rows"),
        ({"max_sequences": 0}, "max_sequences"),
        ({"threads": -1}, "threads"),
    ],
)
def test_options_out_of_range(change: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(replace(OPTIONS, **change))


def test_misshapen_and_quantised_vectors_are_named() -> None:
    weights = random_weights(program())
    check_weights(program(), weights)
    narrow = replace(weights["lm_head"], shape=(80, 32))
    with pytest.raises(CheckpointError, match=r"lm_head has shape \[80, 32\], not \[80, 64\]"):
        check_weights(program(), weights | {"lm_head": narrow})
    vector = quantise("model.norm", np.ones((1, 64), np.float32), WeightFormat.INT8)
    with pytest.raises(CheckpointError, match=r"model\.norm is a vector"):
        check_weights(program(), weights | {"model.norm": replace(vector, shape=(64,))})


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.zeros(25, np.int64)}, "int32"),
        ({"tokens": np.full(25, 80, np.int32)}, "tokens must lie in 0 to 79"),
        ({"tokens": np.full(25, -1, np.int32)}, "tokens must lie"),
        ({"tokens": np.zeros(65, np.int32)}, "65 rows"),
        ({"starts": int32(0, 20, 24)}, "25 rows"),
        ({"starts": int32(0, 25)}, "2 starts"),
        ({"starts": int32(0, 0, 25)}, "no rows"),
        ({"slots": int32(3)}, "1 slots"),
        ({"slots": int32(3, 3)}, "share a slot"),
        ({"slots": int32(3, 4)}, "slots must lie in 0 to 3"),
        ({"contexts": int32(0, -1)}, "positions"),
        ({"contexts": int32(0, 156)}, "positions must lie in 0 to 159"),
        ({"page_tables": (np.zeros((4, 1), np.int32),)}, "needs 2 pages"),
        ({"page_tables": (np.full((4, 10), 20, np.int32),)}, "pages must lie in 0 to 19"),
        ({"page_tables": (np.full((4, 10), 3, np.int32),)}, "two sequences write to page 3"),
        ({"logits_rows": int32(3, 3)}, "ascend"),
        ({"logits_rows": int32(25)}, "logits_rows must lie"),
        ({"logits_rows": int32(0, 1, 2, 3, 4)}, "5 logits rows"),
    ],
)
def test_a_broken_step_is_refused(change: dict[str, Any], message: str) -> None:
    good = step(Rows([1] * 20, 0, [1, 2]), Rows([2] * 5, 16, [1, 3]), logits_rows=[19, 24])
    check_step(good, program(), OPTIONS)
    with pytest.raises(ValueError, match=message):
        check_step(replace(good, **change), program(), OPTIONS)


def test_too_many_sequences() -> None:
    with pytest.raises(ValueError, match="5 sequences"):
        check_step(step(*(Rows([1], 0, [page]) for page in range(1, 6)), logits_rows=[]), program(), OPTIONS)


@pytest.mark.parametrize(
    ("starts", "columns", "values", "message"),
    [
        ([0, 1], [5], [1], "not shared out among its 3 rows"),
        ([0, 2, 1, 2], [5, 6], [1, 1], "not shared out"),
        ([0, 1, 1, 1], [5, 6], [1, 1], "not shared out"),
        ([1, 1, 2, 2], [5, 6], [1, 1], "not shared out"),
        ([0, 1, 1, 2], [5, 6], [1], "not a finite number for each column"),
        ([0, 1, 1, 2], [5, 6], [1, np.inf], "not a finite number"),
        ([0, 1, 1, 2], [5, 64], [1, 1], "ascending columns below 64"),
        ([0, 1, 1, 2], [-1, 6], [1, 1], "ascending columns"),
        ([0, 2, 2, 2], [6, 6], [1, 1], "ascending columns"),
    ],
)
def test_bad_outliers_are_named(starts: list[int], columns: list[int], values: list[float], message: str) -> None:
    check_outliers("w", outliers([0, 2, 2, 3], [5, 6, 5], [1, 1, 1]), 3, 64)
    with pytest.raises(CheckpointError, match=message):
        check_outliers("w", outliers(starts, columns, values), 3, 64)


def outliers(starts: list[int], columns: list[int], values: list[float]) -> Outliers:
    return Outliers(np.array(starts, np.int32), np.array(columns, np.int32), np.array(values, np.float16))
