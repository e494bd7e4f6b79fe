"""Tensors of a checkpoint to weights of an executor, and weights from one format to another."""

from collections.abc import Callable
from dataclasses import replace

from trimaran.base.formats import WeightFormat
from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant import bf16, gguf_blocks, int4, int8
from trimaran.quant.rows import stack_rows, take_rows


def to_weight(tensor: CheckpointTensor, target: WeightFormat | None) -> Weight:
    """A matrix of a checkpoint in ``target``, or in its own grid where ``target`` is ``None``.

    Own grids: F32, BF16, Q8_0, Q4_0, Q4_1 and Q5_0 (which int8 holds exactly) keep every bit. F16 becomes bf16, the
    other block formats int8. A format that holds the tensor's grid exactly is reached without rounding. Raises
    ``UnsupportedError`` when the tensor does not fit ``target``.
    """
    own = gguf_blocks.own_grid(tensor)
    if own is None:
        fallback = WeightFormat.BF16 if tensor.fmt is StorageFormat.F16 else WeightFormat.INT8
        fmt = target or fallback
        return _in_pieces(tensor.name, tensor.shape, lambda rows: quantise(tensor.name, _values(tensor, rows), fmt))
    return own if target is None else recast(own, target)


def to_vector(tensor: CheckpointTensor) -> Weight:
    """A norm's weight or a bias, always fp32."""
    return Weight(tensor.name, WeightFormat.FP32, tensor.shape, gguf_blocks.dequantise(tensor))


def quantise(name: str, values: Float32, target: WeightFormat) -> Weight:
    """``values`` ``[rows, cols]`` rounded to ``target``."""
    return _QUANTISE[target](name, values)


def recast(weight: Weight, target: WeightFormat) -> Weight:
    """``weight`` in ``target``; without rounding where ``lossless`` says so."""
    if weight.fmt is target:
        return weight
    if (weight.fmt, target) in _EXACT:
        return _EXACT[weight.fmt, target](weight)

    def piece(rows: slice) -> Weight:
        return quantise(weight.name, dequantise(take_rows(weight, rows)), target)

    return _in_pieces(weight.name, weight.shape, piece)


def lossless(source: WeightFormat, target: WeightFormat) -> bool:
    """True when every weight in ``source`` has the same numbers in ``target``."""
    return source is target or target is WeightFormat.FP32 or (source, target) in _EXACT


def _values(tensor: CheckpointTensor, rows: slice) -> Float32:
    data = tensor.data[rows]
    return gguf_blocks.dequantise(replace(tensor, shape=(len(data), *tensor.shape[1:]), data=data))


def _in_pieces(name: str, shape: tuple[int, ...], make: Callable[[slice], Weight]) -> Weight:
    """Makes a matrix a few rows at a time, so that no intermediate float32 array is large."""
    step = max(1, _PIECE // shape[1])
    return stack_rows(name, [make(slice(at, at + step)) for at in range(0, shape[0], step)])


_PIECE = 1 << 20  # values

_QUANTISE: dict[WeightFormat, Callable[[str, Float32], Weight]] = {
    WeightFormat.FP32: lambda name, values: Weight(name, WeightFormat.FP32, values.shape, values),
    WeightFormat.BF16: bf16.quantise,
    WeightFormat.INT8: int8.quantise,
    WeightFormat.INT4: int4.quantise,
    WeightFormat.INT4Z: int4.quantise_zero_point,
}
_EXACT: dict[tuple[WeightFormat, WeightFormat], Callable[[Weight], Weight]] = {
    (WeightFormat.INT4, WeightFormat.INT4Z): int4.add_zero_point,
    (WeightFormat.INT4, WeightFormat.INT8): int8.from_int4,
}
