"""Makes caches of any groups, and sequences for them."""

from collections.abc import Sequence as Items

from trimaran.base.sampling import SamplingParams
from trimaran.engine.cache import KVCache
from trimaran.engine.limits import SchedulerLimits
from trimaran.engine.sequence import Sequence

PAGE = 16


def make_limits(context: int = 512, seqs: int = 4, rows: int = 64, waiting: int = 100) -> SchedulerLimits:
    return SchedulerLimits(
        context=context, max_num_seqs=seqs, max_num_batched_tokens=rows, max_waiting=waiting, page_size=PAGE
    )


def make_cache(
    windows: Items[int | None] = (None,),
    pages: Items[int] = (32,),
    limits: SchedulerLimits | None = None,
    *,
    enabled: bool = True,
) -> KVCache:
    """``pages`` are those of each group's pool."""
    num_pages = [count + 1 for count in pages]
    return KVCache(windows, num_pages, limits or make_limits(), b"model", prefix_caching=enabled)


def sequence(tokens: Items[int], *, salt: str = "", name: str = "s", priority: int = 0) -> Sequence:
    return Sequence(name, tokens, SamplingParams(), salt=salt, priority=priority)


def compute(cache: KVCache, sequence: Sequence, tokens: int | None = None, *, slot: int = 0, rows: int = 64) -> None:
    """What scheduler and engine do for a sequence that runs alone: starts it and commits its first ``tokens``."""
    end = sequence.total if tokens is None else tokens
    assert cache.place(sequence, slot, reserve=0)
    while sequence.computed < end:
        step = min(rows, end - sequence.computed)
        if sequence.computed + step > sequence.room:
            assert cache.extend(sequence, sequence.computed + step)
        sequence.advance(step)
        if sequence.computed >= sequence.due:
            cache.settle(sequence)
