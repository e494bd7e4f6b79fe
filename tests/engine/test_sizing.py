import pytest

from trimaran.base.errors import ConfigError
from trimaran.base.formats import CacheGroup, HeadsCache, KVFormat
from trimaran.engine.config import EngineConfig
from trimaran.engine.sizing import available_memory, resolve_sizes

CACHE = CacheGroup((HeadsCache(layers=2, kv_heads=3, head_dim=64),))
PAGE_BYTES = 2 * 2 * 3 * 64 * 16 * 2


def sizes(available: int = 2**40, context: int = 1000, kv_format: KVFormat = KVFormat.BF16, **options):
    return resolve_sizes(EngineConfig(**options), CACHE, kv_format, context, available)


def test_every_sequence_may_reach_the_full_context_when_memory_allows():
    got = sizes(max_num_seqs=4)
    assert (got.context, got.num_pages) == (1000, 4 * 63 + 1)
    assert got.kv_bytes == got.num_pages * PAGE_BYTES


def test_at_most_a_quarter_of_the_available_memory_is_taken():
    assert sizes(available=4 * 100 * PAGE_BYTES).num_pages == 101


def test_memory_that_is_given_is_used_and_the_page_format_counts():
    assert sizes(kv_memory_bytes=100 * PAGE_BYTES + 1).num_pages == 101
    assert sizes(kv_memory_bytes=200 * PAGE_BYTES, kv_format=KVFormat.FP32).num_pages == 101


def test_max_model_len_shortens_the_context():
    got = sizes(max_model_len=100, max_num_seqs=1)
    assert (got.context, got.num_pages) == (100, 8)
    with pytest.raises(ConfigError, match="1001 exceeds the 1000"):
        sizes(max_model_len=1001)


def test_an_engine_that_cannot_hold_one_sequence_is_refused_with_what_would_fit():
    with pytest.raises(ConfigError, match="max_model_len to at most 992, or raise kv_memory_bytes"):
        sizes(kv_memory_bytes=62 * PAGE_BYTES)
    with pytest.raises(ConfigError, match="may be used: raise kv_memory_bytes"):
        sizes(kv_memory_bytes=PAGE_BYTES - 1)  # no context at all would fit
    assert sizes(kv_memory_bytes=63 * PAGE_BYTES).num_pages == 64
    assert sizes(kv_memory_bytes=62 * PAGE_BYTES, max_model_len=992).num_pages == 63


def test_the_machine_has_memory():
    assert 2**20 < available_memory() < 2**50
