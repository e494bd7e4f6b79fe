"""Bytes that a token's cache takes on each GPU, in the formats that engines have for it."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from trimaran.base.formats import Cache, CacheGroup, HeadsCache, IndexCache, LatentCache

_INT4_GROUP = 32  # values that share a bf16 scale


class CacheRecipe(StrEnum):
    """How a cache holds its values. ``fp8`` has static scales, so one byte a value; ``int8`` an fp32 scale a token and
    head (for a latent: one, and one for its key part); ``int4`` groups of 32 with a bf16 scale; of a latent with a bf16
    minimum too, and its key part in bf16. ``int8/int4`` is keys as the first and values as the second; a latent is
    value, and its key part key. The keys of an indexer are always fp8 with an fp32 scale a token."""

    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    INT8_INT4 = "int8/int4"


@dataclass(frozen=True)
class CacheBytes:
    """Bytes on one GPU: ``growing`` for each token of a sequence, ``windowed`` for each within the window, by
    window."""

    growing: float
    windowed: tuple[tuple[int, float], ...]

    def of_sequence(self, tokens: int) -> float:
        """Bytes of a sequence that has ``tokens`` tokens."""
        return self.growing * tokens + sum(size * min(tokens, window) for window, size in self.windowed)


def cache_bytes(groups: tuple[CacheGroup, ...], recipe: CacheRecipe, gpus: int) -> CacheBytes:
    """What one of ``gpus`` holds under tensor parallelism. Heads are shared out, at least one to a GPU; a latent and
    an indexer's key belong to all heads, so every GPU holds them."""
    growing, windowed = 0.0, []
    for group in groups:
        size = sum(_token_bytes(cache, recipe, gpus) for cache in group.caches)
        if group.window is None:
            growing += size
        else:
            windowed.append((group.window, size))
    return CacheBytes(growing, tuple(windowed))


def _token_bytes(cache: Cache, recipe: CacheRecipe, gpus: int) -> float:
    match cache:
        case HeadsCache(layers, kv_heads, head_dim, wide):
            keys, values = (CacheRecipe(half) for half in (recipe.partition("/")[0], recipe.rpartition("/")[2]))
            narrow = (layers - len(wide)) * (_vector(head_dim, keys) + _vector(head_dim, values))
            return ceil(kv_heads / gpus) * (narrow + len(wide) * 2 * _vector(head_dim, CacheRecipe.BF16))
        case LatentCache(layers, latent, rope):
            return layers * _latent(latent, rope, recipe)
        case IndexCache(layers, dim):
            return layers * (dim + 4.0)


def _latent(latent: int, rope: int, recipe: CacheRecipe) -> float:
    match recipe:
        case CacheRecipe.INT4 | CacheRecipe.INT8_INT4:
            held = _vector(latent, CacheRecipe.INT4) + 2 * latent / _INT4_GROUP
            return held + _vector(rope, CacheRecipe.BF16 if recipe is CacheRecipe.INT4 else CacheRecipe.INT8)
        case _:
            return _vector(latent, recipe) + _vector(rope, recipe)


def _vector(width: int, recipe: CacheRecipe) -> float:
    match recipe:
        case CacheRecipe.BF16:
            return 2.0 * width
        case CacheRecipe.FP8:
            return 1.0 * width
        case CacheRecipe.INT8:
            return width + 4.0
        case CacheRecipe.INT4:
            return width * (0.5 + 2 / _INT4_GROUP)
        case CacheRecipe.INT8_INT4:
            raise AssertionError("of two formats")
