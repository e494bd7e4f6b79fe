"""Which tensors are compressed, by their names in vendors' checkpoints; all others stay, for a reason."""

import re

from trimaran.models.skipped import scales_activations

DROPPED = "scales of activations and caches, measured with other weights: left out"
_VISION = frozenset({"vision_tower", "vision_model", "visual", "multi_modal_projector", "mm_projector"})
_LAYER = re.compile(r"(?:.+\.)?layers\.\d+\.(?P<inner>.+)\.weight")
_ROUTER = re.compile(r"(?:mlp|block_sparse_moe)\.(?:gate|shared_expert_gate)")
_ROUTED = re.compile(r"(?:.+\.)?experts\.\d+\..+")
_NEXT = ("eh_proj", "shared_head.head", "embed_tokens")


def why_kept(name: str, shape: tuple[int, ...], experts_only: bool) -> str | None:
    """Why the tensor is not compressed, ``None`` for one that is."""
    if scales_activations(name):
        return DROPPED
    if not _VISION.isdisjoint(name.split(".")):
        return "parts that see images"
    if len(shape) != 2 or not name.endswith(".weight"):
        return "norms, biases and other vectors" if len(shape) < 2 else "no matrices of one linear module"
    match = _LAYER.fullmatch(name)
    if match is None:
        return "embeddings, output matrix and all outside the layers"
    inner = match["inner"]
    if _ROUTER.fullmatch(inner):
        return "routers"
    if "indexer." in inner:
        return "indexers, which choose what attention reads"
    if inner.endswith(_NEXT):
        return "what joins the layers that predict further tokens"
    if experts_only and not _ROUTED.fullmatch(inner):
        return "all but routed experts, as asked"
    return None
