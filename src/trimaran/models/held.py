"""Which format a matrix is held in, where one is asked for all of them."""

from collections.abc import Iterable

from trimaran.base.formats import WeightFormat
from trimaran.kernels.program import WeightSpec

_TABLES = ("model.embed_tokens", "lm_head")  # matrices that coarse formats hurt most
_FINENESS = (
    WeightFormat.CODEBOOK3,
    WeightFormat.CODEBOOK4,
    WeightFormat.INT4,
    WeightFormat.INT4Z,
    WeightFormat.FP8,
    WeightFormat.INT8,
    WeightFormat.BF16,
    WeightFormat.FP32,
)
_COARSE = _FINENESS[: _FINENESS.index(WeightFormat.INT8)]


def finest(formats: Iterable[WeightFormat]) -> WeightFormat:
    """Of some formats that which rounds least."""
    return max(formats, key=_FINENESS.index)


def fine_enough(spec: WeightSpec, fmt: WeightFormat) -> WeightFormat:
    """``fmt``, or what the program asks for at least."""
    return fmt if spec.least is None else finest((fmt, spec.least))


def held_format(spec: WeightSpec, asked: WeightFormat) -> WeightFormat:
    """As ``fine_enough``; embedding and output matrix are int8 where a coarser format is asked for."""
    return fine_enough(spec, WeightFormat.INT8 if asked in _COARSE and spec.name in _TABLES else asked)
