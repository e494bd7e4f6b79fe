"""How ``config.json`` describes rotary embedding: transformers 4 (``rope_theta`` and ``rope_scaling``) and 5
(``rope_parameters``), with the spellings of each vendor."""

import math

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.kernels.program import LinearScaling, Llama3Scaling, RopeScaling, RopeSpec, YarnScaling
from trimaran.models.fields import Fields

DEFAULT_THETA = 10000.0  # Llama 1 and 2 do not write it


def read_rope(own: Fields, head_dim: int, partial: float = 1.0) -> RopeSpec:
    """The rope of a model that has one for all layers; ``partial`` is the share of a head that rotates by default.

    Raises ``CheckpointError`` when two spellings contradict each other or numbers are impossible, ``UnsupportedError``
    on a scaling that is not implemented.
    """
    share = own.number("partial_rotary_factor", partial)
    dims = own.integer("rotary_dim", _part(head_dim, share, "partial_rotary_factor"))
    old = _spec(own, own.optional_mapping("rope_scaling"), "rope_scaling", dims, head_dim, DEFAULT_THETA)
    parameters = own.optional_mapping("rope_parameters")
    if parameters is None:
        return old
    new = _spec(parameters, parameters, "rope_parameters", dims, head_dim)
    if ("rope_theta" in own or "rope_scaling" in own) and new != old:
        raise CheckpointError("config.json: rope_parameters contradicts rope_theta and rope_scaling")
    return new


def read_local_and_global_rope(own: Fields, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """The ropes of the layers with a sliding window and of those without, as Gemma 3 writes them."""
    if (parameters := own.optional_mapping("rope_parameters")) is not None:
        ropes = []
        for kind in ("sliding_attention", "full_attention"):
            fields = parameters.optional_mapping(kind)
            if fields is None:
                raise CheckpointError(f"config.json: rope_parameters has no {kind}")
            ropes.append(_spec(fields, fields, f"rope_parameters.{kind}", head_dim, head_dim))
        return ropes[0], ropes[1]
    everywhere = _spec(own, own.optional_mapping("rope_scaling"), "rope_scaling", head_dim, head_dim, theta=1e6)
    return RopeSpec(own.number("rope_local_base_freq", DEFAULT_THETA), head_dim), everywhere


def latent_scale(own: Fields) -> float:
    """What multi-head latent attention multiplies its scores with beside 1 / sqrt(width): the square of YaRN's
    ``mscale_all_dim`` magnitude, 1 where rope is not scaled."""
    scaling = own.optional_mapping("rope_parameters") or own.optional_mapping("rope_scaling")
    if scaling is None or _kind(scaling) == "default":
        return 1.0
    all_dims = scaling.number("mscale_all_dim", 0.0)
    magnitude = _magnitude(scaling.number("factor"), all_dims) if all_dims else 1.0
    return magnitude * magnitude


def _spec(
    base: Fields, scaling: Fields | None, where: str, dims: int, head_dim: int, theta: float | None = None
) -> RopeSpec:
    if scaling is not None and "partial_rotary_factor" in scaling:
        dims = _part(head_dim, scaling.number("partial_rotary_factor"), f"{where}.partial_rotary_factor")
    return RopeSpec(base.number("rope_theta", theta), dims, _scaling(scaling, where))


def _part(head_dim: int, share: float, key: str) -> int:
    if not 0 < share <= 1:
        raise CheckpointError(f"config.json: {key} must lie between 0 and 1, not {share}")
    return int(head_dim * share)


def _kind(fields: Fields) -> str:
    return fields.text("rope_type", fields.text("type", "default"))  # "type": the spelling before transformers 4.43


def _scaling(fields: Fields | None, where: str) -> RopeScaling | None:
    if fields is None:
        return None
    kind = _kind(fields)
    scaling: RopeScaling | None
    match kind:
        case "default":
            scaling = None
        case "linear":
            scaling = LinearScaling(fields.number("factor"))
        case "llama3":
            scaling = _llama3(fields, where)
        case "yarn":
            scaling = _yarn(fields, where)
        case _:
            raise UnsupportedError(f"config.json sets {where}.rope_type to {kind!r}; implemented are {_KINDS}")
    if scaling is not None and not scaling.factor > 0:
        raise CheckpointError(f"config.json: {where}.factor must be positive")
    if unread := [key for key in fields.unread() if key not in _READ_ELSEWHERE]:
        raise UnsupportedError(f"config.json sets {where}.{unread[0]}, which rope type {kind!r} does not use")
    return scaling


_KINDS = "default, linear, llama3 and yarn"
_READ_ELSEWHERE = frozenset({"rope_theta", "partial_rotary_factor", "llama_4_scaling_beta", "max_position_embeddings"})


def _llama3(fields: Fields, where: str) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=fields.number("factor"),
        low_freq_factor=fields.number("low_freq_factor"),
        high_freq_factor=fields.number("high_freq_factor"),
        original_context=fields.integer("original_max_position_embeddings"),
    )
    if not scaling.low_freq_factor < scaling.high_freq_factor:
        raise CheckpointError(f"config.json: {where} needs factor > 0 and low_freq_factor < high_freq_factor")
    return scaling


def _yarn(fields: Fields, where: str) -> YarnScaling:
    factor = fields.number("factor")
    mscale, all_dims = fields.number("mscale", 0.0), fields.number("mscale_all_dim", 0.0)
    if mscale and all_dims:
        magnitude = _magnitude(factor, mscale) / _magnitude(factor, all_dims)
    else:
        magnitude = _magnitude(factor, 1.0)
    if not fields.flag("truncate", True):
        raise UnsupportedError(f"config.json sets {where}.truncate to false, which is not implemented")
    return YarnScaling(
        factor=factor,
        original_context=fields.integer("original_max_position_embeddings"),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        magnitude=fields.number("attention_factor", magnitude),
    )


def _magnitude(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0
