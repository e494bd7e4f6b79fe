"""Conversions: what is exact stays exact, what has no grid is rounded once."""

import numpy as np
import pytest

from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.quant import gguf_blocks, rows
from trimaran.quant.convert import lossless, quantise, recast, to_vector, to_weight
from trimaran.quant.stored import plain

from .tensors import BLOCK_FORMATS, from_bytes, random_blocks

VALUES = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


@pytest.mark.parametrize(
    ("fmt", "held"),
    [
        (StorageFormat.Q8_0, WeightFormat.INT8),
        (StorageFormat.Q4_0, WeightFormat.INT4),
        (StorageFormat.Q4_1, WeightFormat.INT4Z),
        (StorageFormat.Q5_0, WeightFormat.INT8),
        (StorageFormat.Q5_1, WeightFormat.INT8),
        (StorageFormat.Q4_K, WeightFormat.INT4Z),
        (StorageFormat.Q2_K, WeightFormat.INT8),
        (StorageFormat.Q3_K, WeightFormat.INT8),
        (StorageFormat.IQ4_XS, WeightFormat.INT8),
        (StorageFormat.Q5_K, WeightFormat.INT8),
        (StorageFormat.Q6_K, WeightFormat.INT8),
    ],
)
def test_the_format_a_tensor_is_held_in_by_default(fmt: StorageFormat, held: WeightFormat) -> None:
    tensor = random_blocks(fmt, 2, 256)
    weight = to_weight(plain(tensor), None)
    exact = gguf_blocks.dequantise(tensor)
    assert (weight.fmt, weight.shape) == (held, (2, 256))
    groups = np.abs(exact).reshape(2, -1, 32).max(-1)
    assert (np.abs(dequantise(weight) - exact) <= np.repeat(groups, 32, -1) / 127 * 0.6).all()


def test_f16_is_held_as_bf16_and_wider_when_asked() -> None:
    tensor = from_bytes(StorageFormat.F16, 4, 64, VALUES.astype("<f2").tobytes())
    assert to_weight(plain(tensor), None).fmt is WeightFormat.BF16
    exact = to_weight(plain(tensor), WeightFormat.FP32)
    np.testing.assert_array_equal(exact.data, VALUES.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("fmt", BLOCK_FORMATS)
def test_fp32_holds_every_block_format_exactly(fmt: StorageFormat) -> None:
    tensor = random_blocks(fmt, 2, 256)
    np.testing.assert_array_equal(to_weight(plain(tensor), WeightFormat.FP32).data, gguf_blocks.dequantise(tensor))


@pytest.mark.parametrize("source", list(WeightFormat))
@pytest.mark.parametrize("target", list(WeightFormat))
def test_recasting_is_lossless_exactly_where_it_says_so(source: WeightFormat, target: WeightFormat) -> None:
    weight = quantise("w", VALUES, source)
    other = recast(weight, target)
    assert (other.fmt, other.shape, other.name) == (target, (4, 64), "w")
    same = np.array_equal(dequantise(other), dequantise(weight))
    assert same is lossless(source, target)
    coarse = source.levels or target.levels
    np.testing.assert_allclose(dequantise(other), VALUES, atol=1.2 if coarse else 0.6)


def test_vectors_become_fp32() -> None:
    data = np.array([[0x3F80, 0xC000]], "<u2").view(np.uint8)
    weight = to_vector(plain(CheckpointTensor("norm", (2,), StorageFormat.BF16, data)))
    assert (weight.fmt, weight.shape, weight.data.tolist()) == (WeightFormat.FP32, (2,), [1.0, -2.0])


def test_a_tensor_that_does_not_fit_the_target_is_named() -> None:
    tensor = from_bytes(StorageFormat.F32, 1, 40, np.zeros(40, np.float32).tobytes(), name="blk.0.attn_q.weight")
    with pytest.raises(UnsupportedError, match=r"blk\.0\.attn_q\.weight has 40 columns"):
        to_weight(plain(tensor), WeightFormat.INT8)


@pytest.mark.parametrize("target", list(WeightFormat))
def test_converting_in_pieces_changes_nothing(target: WeightFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 300 if target is WeightFormat.FP8 else 7  # pieces of fp8 have 128 rows
    tensor = random_blocks(StorageFormat.Q6_K, count, 256)
    other = random_blocks(StorageFormat.Q8_0, count, 256)
    whole = [dequantise(to_weight(plain(t), target)) for t in (tensor, other)]
    monkeypatch.setattr(rows, "_PIECE", 600)  # two rows
    pieces = [dequantise(to_weight(plain(t), target)) for t in (tensor, other)]
    np.testing.assert_array_equal(pieces, whole)
