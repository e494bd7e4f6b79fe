"""Tensors of a checkpoint to weights of an executor, and weights from one format to another."""

from collections.abc import Callable

from trimaran.base.formats import FP8_BLOCK, WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant import bf16, codebook, fp8, int4, int8
from trimaran.quant.rows import in_pieces, take_rows
from trimaran.quant.stored import Stored, matrix_shape


def to_weight(tensor: Stored, target: WeightFormat | None) -> Weight:
    """A tensor as a matrix in ``target``, or in its ``default`` format where ``target`` is ``None``.

    A format that holds the tensor's grid exactly is reached without rounding. Raises ``UnsupportedError`` when it does
    not fit ``target``.
    """
    grid = tensor.grid()
    fmt = target or tensor.default()
    if grid is not None and (fmt is grid or (grid, fmt) in _EXACT):
        return recast(tensor.on_grid(), fmt)
    shape = matrix_shape(tensor.shape)
    return in_pieces(tensor.name, shape, lambda rows: quantise(tensor.name, tensor.values(rows), fmt), _together(fmt))


def to_vector(tensor: Stored) -> Weight:
    """A norm's weight or a bias, always fp32."""
    return Weight(tensor.name, WeightFormat.FP32, tensor.shape, tensor.values(slice(None)).reshape(tensor.shape))


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

    return in_pieces(weight.name, weight.shape, piece, _together(target))


def lossless(source: WeightFormat, target: WeightFormat) -> bool:
    """True when every weight in ``source`` has the same numbers in ``target``."""
    return source is target or target is WeightFormat.FP32 or (source, target) in _EXACT


def _together(fmt: WeightFormat) -> int:
    """Rows whose scales depend on each other."""
    return FP8_BLOCK if fmt is WeightFormat.FP8 else 1


_QUANTISE: dict[WeightFormat, Callable[[str, Float32], Weight]] = {
    WeightFormat.FP32: lambda name, values: Weight(name, WeightFormat.FP32, values.shape, values),
    WeightFormat.BF16: bf16.quantise,
    WeightFormat.INT8: int8.quantise,
    WeightFormat.INT4: int4.quantise,
    WeightFormat.INT4Z: int4.quantise_zero_point,
    WeightFormat.FP8: fp8.quantise,
    WeightFormat.CODEBOOK4: lambda name, values: codebook.quantise(name, values, WeightFormat.CODEBOOK4),
    WeightFormat.CODEBOOK3: lambda name, values: codebook.quantise(name, values, WeightFormat.CODEBOOK3),
}
_EXACT: dict[tuple[WeightFormat, WeightFormat], Callable[[Weight], Weight]] = {
    (WeightFormat.INT4, WeightFormat.INT4Z): int4.add_zero_point,
    (WeightFormat.INT4, WeightFormat.INT8): int8.from_int4,
}
