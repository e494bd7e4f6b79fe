"""An executor that is given packed weights computes the same bits as the one that packed them."""

import hashlib
import weakref
from dataclasses import replace

import numpy as np
import pytest

from trimaran import _native
from trimaran.base.formats import WeightFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.packed_weights import Packed, shapes_of, without_numbers
from trimaran.kernels.step import ExecutorOptions
from trimaran.kernels.weights import Weight
from trimaran.quant.convert import quantise

from .single_op import with_outliers
from .tiny import Rows, program, random_tokens, random_weights, step

OPTIONS = ExecutorOptions(num_pages=60, max_rows=200, max_sequences=200, threads=2)
ROWS = Rows(random_tokens(40), 0, [7, 3, 12])


def logits(executor: NativeExecutor) -> np.ndarray:
    out = executor.run(step(ROWS)).logits
    assert out is not None
    return out.copy()


def some_weights(fmt: WeightFormat, *, sparse: bool) -> dict[str, Weight]:
    weights = random_weights(program(), fmt)
    return {name: with_outliers(weight) for name, weight in weights.items()} if sparse else weights


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("fmt", list(WeightFormat))
def test_same_bits(fmt: WeightFormat, sparse: bool) -> None:
    weights = some_weights(fmt, sparse=sparse)
    first = NativeExecutor(program(), weights, OPTIONS)
    expected = logits(first)
    kept = Packed(first.packed.memory.copy(), first.packed.outlier_rows)
    shapes = shapes_of(weights)
    weight_bytes = first.weight_bytes
    first.close()
    second = NativeExecutor(program(), without_numbers(shapes), OPTIONS, kept)
    np.testing.assert_array_equal(logits(second), expected)
    assert second.weight_bytes == weight_bytes
    np.testing.assert_array_equal(second.packed.memory, kept.memory)


def test_memory_outlives_the_executor_that_packed_it() -> None:
    first = NativeExecutor(program(), random_weights(program(), WeightFormat.INT8), OPTIONS)
    kept, expected = first.packed, logits(first)
    first.close()
    second = NativeExecutor(
        program(), without_numbers(shapes_of(random_weights(program(), WeightFormat.INT8))), OPTIONS, kept
    )
    np.testing.assert_array_equal(logits(second), expected)
    with pytest.raises(ValueError, match="closed"):
        _ = first.packed


def test_weights_are_read_one_at_a_time() -> None:
    """No more numbers than one weight's lie in memory beside what is packed, and no weight is read twice."""
    weights = random_weights(program(), WeightFormat.INT8)
    weights["lm_head"] = replace(weights["model.embed_tokens"], name="lm_head")
    expected = NativeExecutor(program(), weights, OPTIONS).packed.memory
    alive: list[weakref.ref[Weight]] = []

    def read(name: str) -> Weight:
        assert all(other() is None for other in alive)
        weight = replace(weights[name])
        alive.append(weakref.ref(weight))
        return weight

    executor = NativeExecutor(program(), without_numbers(shapes_of(weights)), OPTIONS, read=read)
    np.testing.assert_array_equal(executor.packed.memory, expected)
    assert len(alive) == len(program().weights)


def test_one_weight_under_two_names_stays_one() -> None:
    weights = random_weights(program(), WeightFormat.INT8)
    weights["lm_head"] = weights["model.embed_tokens"]
    hollow = without_numbers(shapes_of(weights))
    assert hollow["lm_head"] is hollow["model.embed_tokens"]
    assert sum(weight is hollow["lm_head"] for weight in hollow.values()) == 2


def test_packed_memory_of_another_size_is_refused() -> None:
    weights = random_weights(program(), WeightFormat.INT8)
    kept = NativeExecutor(program(), weights, OPTIONS).packed
    with pytest.raises(MemoryError):
        NativeExecutor(program(), without_numbers(shapes_of(weights)), OPTIONS, Packed(kept.memory[:-128]))


def test_a_weight_without_numbers_is_not_packed() -> None:
    hollow = without_numbers(shapes_of(random_weights(program(), WeightFormat.INT8)))
    with pytest.raises(ValueError, match="arrays do not match"):
        NativeExecutor(program(), {**random_weights(program()), "lm_head": hollow["lm_head"]}, OPTIONS)


PACKED = {  # kPackingVersion, and the SHA-256 of what it makes
    "fp32": (1, "423af645f78a593a"),
    "bf16": (1, "c021f198c5efbe27"),
    "int8": (1, "a0bd8d079b1b943b"),
    "int4": (1, "46aac9b88ff0ab2f"),
    "int4z": (1, "3c8bb130ed9876ce"),
    "fp8": (1, "e64ffacc7e8f7b70"),
    "codebook4": (1, "f6a80a453c6b5b88"),
    "codebook3": (1, "2d8a44cbb0f195f3"),
}


@pytest.mark.parametrize("fmt", list(WeightFormat))
def test_packed_bytes_have_not_changed(fmt: WeightFormat) -> None:
    """If they have on purpose, raise kPackingVersion (csrc/pack.h): what lies in users' caches is of no use then."""
    weights = {spec.name: some_numbers(spec.name, spec.shape, fmt) for spec in program().weights.values()}
    packed = NativeExecutor(program(), weights, OPTIONS).packed
    found = hashlib.sha256(packed.memory.tobytes()).hexdigest()[:16]
    assert (_native.PACKING_VERSION, found) == PACKED[fmt.value]


def some_numbers(name: str, shape: tuple[int, ...], fmt: WeightFormat) -> Weight:
    """The same on every machine: quotients that are exact, and codebooks that nothing was fitted to."""
    count = int(np.prod(shape))
    values = (((np.arange(count) * 7919 + len(name)) % 1009 - 504) / 512).astype(np.float32).reshape(shape)
    if len(shape) == 1:
        return Weight(name, WeightFormat.FP32, shape, values)
    if not fmt.levels:
        return quantise(name, values, fmt)
    rows, cols = shape
    codes = (np.arange(count) * 7919 % fmt.levels).astype(np.uint8).reshape(rows, cols // 32, 2, 16)
    data = (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(rows, cols // 2)
    codebook = (np.arange(rows * fmt.levels) * 7919 % 255 - 127).astype(np.int8).reshape(rows, fmt.levels)
    scale = (np.arange(rows) % 7 + 1).astype(np.float16) / np.float16(8)
    return with_outliers(Weight(name, fmt, shape, data, scale, codebook=codebook))
