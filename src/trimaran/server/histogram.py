"""A Prometheus histogram for the busiest path: one observation is a search and two additions, without a lock."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Histogram(Collector):
    """Counts values by upper bound, as ``prometheus_client.Histogram``; for use from one thread."""

    def __init__(self, name: str, documentation: str, *, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name, self._documentation = name, documentation
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(buckets) + 1)  # the last one: above every bound
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """The one family, whose counts are cumulative."""
        names = [*map(str, map(float, self._bounds)), "+Inf"]
        counts = zip(names, accumulate(self._counts), strict=True)
        yield HistogramMetricFamily(self._name, self._documentation, buckets=list(counts), sum_value=self._sum)
