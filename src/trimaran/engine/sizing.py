"""How long a context and how many pages an engine gets: from the options, the model and the machine, before anything is
allocated.

Each cache group has at least the pages that one sequence of full length needs at once. What memory is left goes to
groups with a window and to those without by halves, except that neither gets more than ``max_num_seqs`` sequences can
use: without a window all their tokens, with one the window and a step, and the windows of as many sequences that have
ended and may be continued. By halves, because how long sequences will be is not known: windows decide how many short
ones can run together, the rest how many long ones.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.errors import ConfigError
from trimaran.base.formats import ActivationFormat, CacheGroup, HeadsCache, KVFormat
from trimaran.engine.config import EngineConfig
from trimaran.engine.window import most_pages, pages_of
from trimaran.kernels.weights import Weight

MEMORY_SHARE = 0.25  # of the memory that is available at start; the weights are loaded already


@dataclass(frozen=True)
class Sizes:
    """Resolved sizes. ``num_pages`` are those of each cache group and count the null page."""

    context: int
    kv_format: KVFormat
    num_pages: tuple[int, ...]
    kv_bytes: int


MOST_INT8_DIMS = 128  # of a head that gets int8 pages unasked


def kv_format_beside(
    weights: Mapping[str, Weight], activations: ActivationFormat, groups: Sequence[CacheGroup]
) -> KVFormat:
    """What pages hold when nobody says: int8 where weights meet int8 activations, which cost more exactness than such
    pages do (``python bench/parity.py smollm2``); bf16 elsewhere, and for heads so wide that pages cost more than
    activations (the 256 dimensions of Gemma 3: ``python bench/parity.py gemma3-270m``)."""
    quantised = activations is ActivationFormat.INT8 and any(weight.fmt.integer for weight in weights.values())
    caches = [cache for group in groups for cache in group.caches if isinstance(cache, HeadsCache)]
    wide = any(cache.head_dim > MOST_INT8_DIMS for cache in caches)
    return KVFormat.INT8 if quantised and not wide else KVFormat.BF16


def resolve_sizes(
    config: EngineConfig, groups: Sequence[CacheGroup], kv_format: KVFormat, model_context: int, available_bytes: int
) -> Sizes:
    """Pure: the same arguments give the same sizes.

    Raises ``ConfigError`` when the context asked for exceeds the model's, or when not even one sequence of full length
    fits the memory for pages.
    """
    context = config.max_model_len or model_context
    if context > model_context:
        raise ConfigError(f"max_model_len {context} exceeds the {model_context} tokens that the model was trained for")
    budget = config.kv_memory_bytes if config.kv_memory_bytes is not None else int(available_bytes * MEMORY_SHARE)
    demands = [_demand(config, group, kv_format, context) for group in groups]
    if sum(demand.least for demand in demands) > budget:
        raise ConfigError(_too_little(config, groups, kv_format, context, budget))
    pages = tuple(1 + count for count in _split(budget, demands))
    kv_bytes = sum(count * demand.page_bytes for count, demand in zip(pages, demands, strict=True))
    return Sizes(context=context, kv_format=kv_format, num_pages=pages, kv_bytes=kv_bytes)


@dataclass(frozen=True)
class _Demand:
    """Bytes that a cache group needs, and how many more are of use."""

    page_bytes: int
    least: int
    more: int
    windowed: bool


def _demand(config: EngineConfig, group: CacheGroup, kv_format: KVFormat, context: int) -> _Demand:
    size, sequences = config.page_size, config.max_num_seqs
    page_bytes = group.page_bytes(kv_format, size)
    least = most_pages(context, config.max_num_batched_tokens, group.window, size)
    wanted = sequences * pages_of(context, size)
    if group.window is not None:
        at_rest = pages_of(group.window, size) if config.prefix_caching else 0
        wanted = min(wanted, sequences * (least + 1 + at_rest))  # 1: an admission leaves a page for each that runs
    return _Demand(page_bytes, least * page_bytes, (wanted - least) * page_bytes, group.window is not None)


def _split(budget: int, demands: Sequence[_Demand]) -> list[int]:
    """Pages for each group, the null page not counted."""
    rest = budget - sum(demand.least for demand in demands)
    windowed = sum(demand.more for demand in demands if demand.windowed)
    whole = sum(demand.more for demand in demands if not demand.windowed)
    to_windowed = min(windowed, max(rest // 2, rest - whole))
    to_whole = min(whole, rest - to_windowed)
    pages = []
    for demand in demands:
        share, of = (to_windowed, windowed) if demand.windowed else (to_whole, whole)
        more = demand.more * share // of if of else 0
        pages.append((demand.least + more) // demand.page_bytes)
    return pages


def _too_little(
    config: EngineConfig, groups: Sequence[CacheGroup], kv_format: KVFormat, context: int, budget: int
) -> str:
    def need(tokens: int) -> int:
        return sum(_demand(config, group, kv_format, tokens).least for group in groups)

    fitting = bisect_right(range(config.page_size, context, config.page_size), budget, key=need) * config.page_size
    shorter = f"lower max_model_len to at most {fitting}, or " if fitting else ""
    return (
        f"one sequence of {context} tokens needs {_mib(need(context))} of KV pages and only {_mib(budget)} may be "
        f"used: {shorter}raise kv_memory_bytes"
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
