import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.errors import ConfigError
from trimaran.base.formats import ActivationFormat, CacheGroup, HeadsCache, KVFormat, WeightFormat
from trimaran.engine.config import EngineConfig
from trimaran.engine.sizing import kv_format_beside, resolve_sizes
from trimaran.quant.convert import quantise

GROUPS = (CacheGroup((HeadsCache(layers=2, kv_heads=3, head_dim=64),)),)
PAGE_BYTES = 2 * 2 * 3 * 64 * 16 * 2


def sizes(available: int = 2**40, context: int = 1000, kv_format: KVFormat = KVFormat.BF16, groups=GROUPS, **options):
    return resolve_sizes(EngineConfig(**options), groups, kv_format, context, available)


def test_every_sequence_may_reach_the_full_context_when_memory_allows():
    got = sizes(max_num_seqs=4)
    assert (got.context, got.num_pages) == (1000, (4 * 63 + 1,))
    assert got.kv_bytes == got.num_pages[0] * PAGE_BYTES


def test_at_most_a_quarter_of_the_available_memory_is_taken():
    assert sizes(available=4 * 100 * PAGE_BYTES).num_pages == (101,)


def test_memory_that_is_given_is_used_and_the_page_format_counts():
    assert sizes(kv_memory_bytes=100 * PAGE_BYTES + 1).num_pages == (101,)
    assert sizes(kv_memory_bytes=200 * PAGE_BYTES, kv_format=KVFormat.FP32).num_pages == (101,)


def test_max_model_len_shortens_the_context():
    got = sizes(max_model_len=100, max_num_seqs=1)
    assert (got.context, got.num_pages) == (100, (8,))
    with pytest.raises(ConfigError, match="1001 exceeds the 1000"):
        sizes(max_model_len=1001)


def test_an_engine_that_cannot_hold_one_sequence_is_refused_with_what_would_fit():
    with pytest.raises(ConfigError, match="max_model_len to at most 992, or raise kv_memory_bytes"):
        sizes(kv_memory_bytes=62 * PAGE_BYTES)
    with pytest.raises(ConfigError, match="may be used: raise kv_memory_bytes"):
        sizes(kv_memory_bytes=PAGE_BYTES - 1)  # no context at all would fit
    assert sizes(kv_memory_bytes=63 * PAGE_BYTES).num_pages == (64,)
    assert sizes(kv_memory_bytes=62 * PAGE_BYTES, max_model_len=992).num_pages == (63,)


def windowed(window: int, layers: int = 2) -> CacheGroup:
    return CacheGroup((HeadsCache(layers=layers, kv_heads=3, head_dim=64),), window)


BOTH = (*GROUPS, windowed(100, layers=4))
NEED = (100 + 50 - 2) // 16 + 2  # pages of a window of 100 and the 50 rows of a step, wherever they begin
LONG = {"context": 10_000, "max_num_seqs": 4, "max_num_batched_tokens": 50}


def test_a_window_gets_what_all_sequences_use_and_as_many_that_are_continued():
    got = sizes(groups=BOTH, **LONG)
    assert got.num_pages == (4 * 625 + 1, 4 * (NEED + 1 + 7) + 1)
    assert got.kv_bytes == got.num_pages[0] * PAGE_BYTES + got.num_pages[1] * 2 * PAGE_BYTES
    assert sizes(groups=BOTH, prefix_caching=False, **LONG).num_pages[1] == 4 * (NEED + 1) + 1


def test_a_window_that_is_longer_than_the_context_changes_nothing():
    assert sizes(groups=(windowed(4096),)).num_pages == sizes().num_pages


def test_one_sequence_of_full_length_fits_in_every_group():
    least = (625 + 2 * NEED) * PAGE_BYTES
    assert sizes(groups=BOTH, kv_memory_bytes=least, **LONG).num_pages == (626, NEED + 1)
    with pytest.raises(ConfigError, match="max_model_len to at most 9984, or raise kv_memory_bytes"):
        sizes(groups=BOTH, kv_memory_bytes=least - 1, **LONG)
    assert sizes(groups=BOTH, kv_memory_bytes=least - 1, max_model_len=9984, **LONG).num_pages == (625, NEED + 1)
    with pytest.raises(ConfigError, match="at most 48, or"):  # shorter than the window: all of it in both groups
        sizes(groups=BOTH, kv_memory_bytes=11 * PAGE_BYTES, **LONG)


def test_what_is_left_is_split_by_halves_until_one_half_has_enough():
    least, wanted = (625 + 2 * NEED) * PAGE_BYTES, 2 * (4 * (NEED + 8) - NEED) * PAGE_BYTES  # of windowed pages, more
    assert sizes(groups=BOTH, kv_memory_bytes=least + 40 * PAGE_BYTES, **LONG).num_pages == (646, NEED + 11)
    some = sizes(groups=BOTH, kv_memory_bytes=least + 3 * wanted, **LONG)
    assert some.num_pages == (626 + 2 * wanted // PAGE_BYTES, 4 * (NEED + 8) + 1)


@given(
    st.lists(st.none() | st.integers(1, 2000), min_size=1, max_size=4),
    st.integers(1, 2**32),
    st.integers(16, 5000),
    st.integers(1, 100),
)
def test_memory_is_neither_exceeded_nor_left_where_it_is_of_use(windows, memory, context, seqs):
    groups = [CacheGroup((HeadsCache(i + 1, 2, 16),), window) for i, window in enumerate(windows)]
    try:
        got = sizes(groups=groups, kv_memory_bytes=memory, context=context, max_num_seqs=seqs)
    except ConfigError:
        return
    prices = [group.page_bytes(KVFormat.BF16, 16) for group in groups]
    used = sum((pages - 1) * price for pages, price in zip(got.num_pages, prices, strict=True))
    assert used <= memory
    most = sizes(groups=groups, context=context, max_num_seqs=seqs, available=2**50).num_pages
    assert all(pages <= enough for pages, enough in zip(got.num_pages, most, strict=True))
    assert used > memory - 2 * sum(prices) or got.num_pages == most


@pytest.mark.parametrize(
    ("weights", "activations", "head_dim", "expected"),
    [
        (WeightFormat.INT8, ActivationFormat.INT8, 128, KVFormat.INT8),
        (WeightFormat.INT8, ActivationFormat.INT8, 256, KVFormat.BF16),
        (WeightFormat.INT8, ActivationFormat.FP32, 128, KVFormat.BF16),
        (WeightFormat.BF16, ActivationFormat.INT8, 128, KVFormat.BF16),
    ],
)
def test_the_format_of_pages_that_nobody_asked_for(weights, activations, head_dim, expected):
    held = {"w": quantise("w", np.ones((2, 32), np.float32), weights)}
    groups = (CacheGroup((HeadsCache(1, 1, 64),)), CacheGroup((HeadsCache(1, 1, head_dim),), window=8))
    assert kv_format_beside(held, activations, groups) is expected
