"""How GGUF metadata describes rotary embedding. Source: ``llama-model.cpp`` and ``rope.h`` of llama.cpp."""

import math

import numpy as np

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint import Checkpoint, StorageFormat
from trimaran.kernels.program import LinearScaling, RopeScaling, RopeSpec, YarnScaling
from trimaran.models.fields import Fields

ROPE_FACTORS = "rope_freqs.weight"  # a tensor, though it is configuration: what each rope frequency is divided by
_THETA = 10000.0


def read_rope(own: Fields, checkpoint: Checkpoint, head_dim: int) -> RopeSpec:
    """The rope of the layers that see all tokens; ``own`` holds the keys of the file's architecture."""
    dims = own.integer("rope.dimension_count", head_dim)
    theta = own.number("rope.freq_base", _THETA)
    return RopeSpec(theta, dims, _scaling(own), rope_factors(checkpoint, dims // 2))


def read_local_rope(own: Fields, head_dim: int) -> RopeSpec:
    """The rope of the layers with a window, which is never scaled."""
    return RopeSpec(own.number("rope.freq_base_swa", _THETA), head_dim)


def latent_scale(own: Fields) -> float:
    """What multi-head latent attention multiplies its scores with beside 1 / sqrt(width); see ``rope_hf.py``."""
    if own.text("rope.scaling.type", "none") != "yarn":
        return 1.0
    # DeepSeek's files hold a tenth of mscale_all_dim here, others all of it.
    all_dims = own.number("rope.scaling.yarn_log_multiplier", 0.0) * 10
    magnitude = _magnitude(own.number("rope.scaling.factor"), all_dims)
    return magnitude * magnitude


def _scaling(own: Fields) -> RopeScaling | None:
    kind = own.text("rope.scaling.type", "none")
    own.flag("rope.scaling.finetuned", False)
    if kind == "none":
        return None
    factor = own.number("rope.scaling.factor")
    if not factor > 0:
        raise CheckpointError(f"the GGUF file: rope.scaling.factor must be positive, not {factor}")
    if kind == "linear":
        return LinearScaling(factor)
    if kind != "yarn":
        raise UnsupportedError(f"the GGUF file sets rope.scaling.type to {kind!r}; implemented are linear and yarn")
    # With a log multiplier, mscale and mscale_all_dim are both set, and equal: they cancel.
    multiplier = own.number("rope.scaling.yarn_log_multiplier", 0.0)
    return YarnScaling(
        factor=factor,
        original_context=own.integer("rope.scaling.original_context_length"),
        beta_fast=own.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=own.number("rope.scaling.yarn_beta_slow", 1.0),
        magnitude=own.number("rope.scaling.attn_factor", 1.0) * (1.0 if multiplier else _magnitude(factor, 1.0)),
    )


def _magnitude(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def rope_factors(checkpoint: Checkpoint, count: int) -> tuple[float, ...] | None:
    """What the file's tensor says each of ``count`` frequencies is divided by; ``None`` without one."""
    for tensor in checkpoint.tensors():
        if tensor.name == ROPE_FACTORS:
            if tensor.fmt is not StorageFormat.F32:
                raise CheckpointError(f"{ROPE_FACTORS} must hold positive F32 numbers, not {tensor.fmt}")
            factors = np.frombuffer(tensor.data.tobytes(), dtype="<f4")
            if not np.all((factors > 0) & np.isfinite(factors)):
                raise CheckpointError(f"{ROPE_FACTORS} must hold positive F32 numbers")
            if len(factors) != count:
                raise CheckpointError(f"{ROPE_FACTORS} holds {len(factors)} factors, not {count}")
            return tuple(factors.tolist())
    return None
