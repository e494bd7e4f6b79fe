"""Sizes that the CPU executor's kernels have."""

from collections.abc import Mapping

from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import GROUP
from trimaran.kernels.program import (
    Attention,
    Experts,
    HeadLinear,
    LatentAttention,
    Program,
    Route,
    SelectTokens,
)
from trimaran.kernels.weights import Weight

MAX_VOCAB = 2**19  # up to here the sums of a sampler's weights are exact
MAX_ROUTES = 64  # experts of a row, and groups of experts
MAX_OUTLIER_INPUTS = 2**16


def check_shapes(program: Program, weights: Mapping[str, Weight]) -> None:
    """Raises ``UnsupportedError`` naming the size for which there is no kernel."""
    for spec in program.weights.values():
        if not spec.matrix:
            continue
        fmt, inputs = weights[spec.name].fmt, spec.shape[1]
        multiple = GROUP if fmt.quantised else 2
        if inputs % multiple:
            raise UnsupportedError(
                f"{spec.name} has {inputs} inputs; as {fmt} the native executor needs a multiple of {multiple}"
            )
        if inputs > MAX_OUTLIER_INPUTS and weights[spec.name].outliers is not None:
            raise UnsupportedError(f"{spec.name} has outliers and {inputs} inputs, more than {MAX_OUTLIER_INPUTS}")
    if program.vocab > MAX_VOCAB:
        raise UnsupportedError(f"a vocabulary of {program.vocab} exceeds the native executor's limit of {MAX_VOCAB}")
    for op in program.ops + program.prefill_ops:
        if isinstance(op, Route) and max(op.top_k, op.groups) > MAX_ROUTES:
            raise UnsupportedError(f"{op.top_k} experts a row of {op.groups} groups: the most is {MAX_ROUTES} of each")
        if isinstance(op, Experts):
            assert op.activation == "silu", op
        if isinstance(op, Attention):
            assert op.window == program.groups[op.group].window, op
            if op.head_dim % 16:
                raise UnsupportedError(f"head_dim {op.head_dim} is not a multiple of 16, as the native executor needs")
            assert op.heads % op.kv_heads == 0, op
            assert op.rope.dims % 2 == 0, op
            assert op.rope.dims <= op.head_dim, op
        if isinstance(op, HeadLinear) and weights[op.weight].fmt.quantised:
            raise UnsupportedError(f"{op.weight} is held as {weights[op.weight].fmt}; it must be bf16 or fp32")
        if isinstance(op, LatentAttention):
            _need_sixteens(latent=op.latent, rope=op.rope.dims)
        if isinstance(op, SelectTokens):
            _need_sixteens(indexer=op.dim)
            assert op.rope.dims <= op.dim, op


def _need_sixteens(**widths: int) -> None:
    for name, width in widths.items():
        if width % 16:
            raise UnsupportedError(f"{name} is {width} wide, not a multiple of 16, as the native executor needs")
