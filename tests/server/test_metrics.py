"""Counters of an engine that starts anew go on rising; gauges follow it down."""

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.messages import Beat, CachePages
from trimaran.server.histogram import Histogram
from trimaran.server.metrics import Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(name, labels)
    assert found is not None
    return found


def test_counters_rise_over_a_restart():
    metrics = Metrics()
    metrics.engine.started()
    metrics.engine.observe(Beat(generated_tokens=10, running=3))
    metrics.engine.observe(Beat(generated_tokens=15, running=2))
    metrics.engine.ended()
    assert value(metrics, "trimaran_sequences_running") == 0
    assert value(metrics, "trimaran_engine_up") == 0
    metrics.engine.started()
    metrics.engine.observe(Beat(generated_tokens=4, running=1))
    assert value(metrics, "trimaran_generated_tokens_total") == 19
    assert value(metrics, "trimaran_sequences_running") == 1


def test_pages_are_told_apart_by_the_window_of_their_layers():
    metrics = Metrics()
    metrics.engine.observe(Beat(pages=[CachePages(None, 9, 8, 1), CachePages(512, 7, 3, 4)]))
    metrics.engine.observe(Beat(pages=[CachePages(None, 9, 5, 2), CachePages(512, 7, 3, 4)]))
    assert value(metrics, "trimaran_pages_free", window="none") == 5
    assert value(metrics, "trimaran_pages_cached", window="none") == 2
    assert value(metrics, "trimaran_pages_free", window="512") == 3
    assert value(metrics, "trimaran_pages", window="512") == 7
    metrics.engine.observe(Beat(pages=[CachePages(512, 7, 3, 4), CachePages(512, 5, 2, 0)]))
    assert value(metrics, "trimaran_pages_free", window="512") == 5


def test_fragmentation_is_a_share_of_what_sequences_hold():
    metrics = Metrics()
    metrics.engine.observe(Beat(pages=[CachePages(None, 9, 9, 0)]))
    assert value(metrics, "trimaran_pages_unused_ratio", window="none") == 0, "nothing is held"
    held = CachePages(None, 9, 5, 0, slots=64, unused=16, neighbours=8, jumps=2)
    metrics.engine.observe(Beat(pages=[held, CachePages(512, 7, 7, 0), CachePages(512, 7, 5, 0, 32, 24, 1, 1)]))
    assert value(metrics, "trimaran_pages_unused_ratio", window="none") == 0.25
    assert value(metrics, "trimaran_pages_scattered_ratio", window="none") == 0.25
    assert value(metrics, "trimaran_pages_unused_ratio", window="512") == 0.75, "of both groups together"
    assert value(metrics, "trimaran_pages_scattered_ratio", window="512") == 1


def test_transfers_are_counted_by_what_they_failed_of():
    metrics = Metrics()
    metrics.engine.observe(Beat(transfers_failed={"link": 2}, links_rejected=1))
    metrics.engine.observe(Beat(transfers_failed={"link": 3, "expired": 1}, links_rejected=1))
    metrics.engine.started()
    metrics.engine.observe(Beat(transfers_failed={"expired": 1}))
    assert value(metrics, "trimaran_transfers_failed_total", cause="link") == 3
    assert value(metrics, "trimaran_transfers_failed_total", cause="expired") == 2
    assert value(metrics, "trimaran_links_rejected_total") == 1


def test_servers_share_nothing():
    one, other = Metrics(), Metrics()
    one.cancelled.inc()
    assert value(other, "trimaran_requests_cancelled_total") == 0


@given(st.lists(st.floats(0, 3) | st.sampled_from([0.5, 1.0])))
def test_a_histogram_counts_as_prometheus_own(values):
    shown = []
    for kind in (Histogram, prometheus_client.Histogram):
        registry = prometheus_client.CollectorRegistry()
        histogram = kind("seconds", "Of something", buckets=(0.5, 1.0, 2.0), registry=registry)
        for value in values:
            histogram.observe(value)
        shown.append(prometheus_client.generate_latest(registry))
    assert shown[0] == shown[1]
