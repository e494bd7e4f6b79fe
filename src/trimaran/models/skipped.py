"""Tensors that a checkpoint may hold although its text model does not read them."""

import re

from trimaran.models.config import ModelConfig
from trimaran.models.rope_gguf import ROPE_FACTORS

_VISION = ("vision_tower.", "multi_modal_projector.", "mm_projector.", "model.mm_projector.")
_UNREAD = ("pooler.", "cls.", "embeddings.position_ids")
# What tools measured of the numbers that flow while a model runs; here each is scaled as it comes.
_RUNNING = re.compile(
    r".+\.(activation_scale|input_(scale|scale_ub|zero_point|global_scale)|output_scale|prob_scale"
    r"|([qkv]|kv)_(scale|zero_point))"
)
_LAYER = re.compile(r"(?:model\.layers|blk)\.(\d+)\.(?:self_attn\.)?(indexer\.)?")


def scales_activations(tensor: str) -> bool:
    """True for what tools measured of activations and caches."""
    return _RUNNING.fullmatch(tensor) is not None


def why_skipped(tensor: str, cfg: ModelConfig) -> str | None:
    """What ``tensor``, by its name in the language model, is instead; ``None`` for one that nobody knows."""
    if tensor == ROPE_FACTORS or tensor.endswith("rotary_emb.inv_freq"):
        return "rope constants that the configuration holds already"
    if scales_activations(tensor):
        return "scales of activations and caches"
    if cfg.tied and tensor == "lm_head.weight":
        return "a second copy of the tied matrix"
    if cfg.encoder is not None and tensor.startswith(_UNREAD):
        return "parts of an encoder that its vectors do not come from"
    if tensor.startswith(_VISION):
        return "parts that see images"
    match = _LAYER.match(tensor)
    if match and cfg.layers <= int(match[1]) < cfg.layers + cfg.mtp_layers:
        return "layers that predict further tokens"
    if match and match[2] and cfg.indexer is not None and int(match[1]) not in cfg.indexer.layers:
        return "indexers of layers that use another's choice"
    return None
