"""Layers whose keys and values are exempt from the pages' format: they stay bf16."""

from collections.abc import Sequence
from dataclasses import replace

from trimaran.base.errors import ConfigError
from trimaran.base.formats import CacheGroup, HeadsCache, KVFormat
from trimaran.kernels.program import Attention, LatentAttention, Program

SLIDING = "sliding"  # all layers with a window
OPTION = "kv_cache_dtype_skip_layers"
Layer = int | str


def parse_layers(text: str) -> tuple[Layer, ...]:
    """``"0,1,sliding"`` as layers; raises ``ConfigError`` on anything else."""
    layers: list[Layer] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word != SLIDING and not word.isdecimal():
            raise ConfigError(f"{OPTION}: {word!r} is neither the number of a layer nor the word {SLIDING!r}")
        layers.append(word if word == SLIDING else int(word))
    return tuple(layers)


def keep_wide(program: Program, layers: Sequence[Layer]) -> Program:
    """The program with ``wide`` set in its caches for ``layers``: numbers from 0, and the word ``sliding``.

    Raises ``ConfigError`` for a layer that the model does not have, or whose cache cannot be kept so.
    """
    if not layers:
        return program
    places = _places(program)
    chosen: set[tuple[int, int]] = set()
    for layer in layers:
        if isinstance(layer, str):
            found = [place for place in places if program.groups[place[0]].window is not None]
            if layer != SLIDING or not found:
                raise ConfigError(
                    f"{OPTION}: this model has no layers with a sliding window"
                    if layer == SLIDING
                    else f"{OPTION}: {layer!r} is neither the number of a layer nor the word {SLIDING!r}"
                )
            chosen.update(found)
        elif 0 <= layer < len(places):
            chosen.add(places[layer])
        else:
            raise ConfigError(f"{OPTION}: this model has no layer {layer}; it has 0 to {len(places) - 1}")
    groups = [_widened(group, [at for of, at in chosen if of == number]) for number, group in enumerate(program.groups)]
    return replace(program, groups=tuple(groups))


def describe_pages(fmt: KVFormat, groups: Sequence[CacheGroup]) -> str:
    """What pages hold, such as ``int8``, or ``int8+bf16`` where some layers are exempt."""
    some = any(isinstance(cache, HeadsCache) and cache.wide for group in groups for cache in group.caches)
    return f"{fmt}+{fmt.wider}" if some and fmt is not fmt.wider else fmt.value


def _places(program: Program) -> list[tuple[int, int]]:
    """Of each layer of the model its cache group, and its number in the group's cache."""
    attention = [op for op in program.ops if isinstance(op, Attention | LatentAttention)]
    if attention:
        return [(op.group, op.layer) for op in attention]
    caches = [(number, cache) for number, group in enumerate(program.groups) for cache in group.caches]
    return [(number, layer) for number, cache in caches for layer in range(cache.layers)]  # of the null executor


def _widened(group: CacheGroup, layers: Sequence[int]) -> CacheGroup:
    if not layers:
        return group
    caches = []
    for cache in group.caches:
        if not isinstance(cache, HeadsCache):
            raise ConfigError(f"{OPTION}: layers of latents cannot be exempt from the pages' format")
        caches.append(replace(cache, wide=tuple(sorted(layers))))
    return replace(group, caches=tuple(caches))
