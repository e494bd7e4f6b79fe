"""Tensors of a checkpoint to weights of an executor, and weights from one format to another."""

from collections.abc import Callable

from trimaran.base.formats import WeightFormat
from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant import bf16, gguf_blocks, int4, int8


def to_weight(tensor: CheckpointTensor, target: WeightFormat | None) -> Weight:
    """A matrix of a checkpoint in ``target``, or in its own grid where ``target`` is ``None``.

    Own grids: F32, BF16, Q8_0, Q4_0, Q4_1 and Q5_0 (which int8 holds exactly) keep every bit. F16 becomes bf16, the
    other block formats int8. A format that holds the tensor's grid exactly is reached without rounding. Raises
    ``UnsupportedError`` when the tensor does not fit ``target``.
    """
    own = gguf_blocks.own_grid(tensor)
    if own is None:
        fallback = WeightFormat.BF16 if tensor.fmt is StorageFormat.F16 else WeightFormat.INT8
        return quantise(tensor.name, gguf_blocks.dequantise(tensor), target or fallback)
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
    return quantise(weight.name, dequantise(weight), target)


def lossless(source: WeightFormat, target: WeightFormat) -> bool:
    """True when every weight in ``source`` has the same numbers in ``target``."""
    return source is target or target is WeightFormat.FP32 or (source, target) in _EXACT


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
