"""What ``/metrics`` shows of pools: of every worker's engine, by role and number, and of the router."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trimaran.base.messages import Handed
from trimaran.server.engine_metrics import EngineMetrics
from trimaran.server.histogram import Histogram

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)


class PoolMetrics:
    """Those of a router and its workers, in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queued = Gauge("trimaran_router_queued", "Sequences that wait for a worker", registry=registry)
        self.load = Gauge(
            "trimaran_router_tokens",
            "Tokens that a worker has to compute or to hold, as the router estimates",
            ["role", "worker"],
            registry=registry,
        )
        self.retries = Counter(
            "trimaran_router_retries", "Attempts that failed before the first token", ["cause"], registry=registry
        )
        self.prefill_seconds = Histogram(
            "trimaran_handoff_prefill_seconds",
            "From a prompt's arrival at a prefill worker to its first token",
            buckets=_SECONDS,
            registry=registry,
        )
        self.handoff_seconds = Histogram(
            "trimaran_handoff_seconds",
            "From a prompt's first token to its being taken by the decode worker",
            buckets=_SECONDS,
            registry=registry,
        )
        self.bytes = Counter("trimaran_handoff_bytes", "Bytes of cache pages handed over", registry=registry)
        self._engines = _Labelled()
        registry.register(self._engines)

    def handed(self, message: Handed) -> None:
        """Counts a prompt that was handed over."""
        self.prefill_seconds.observe(message.prefill_seconds)
        self.handoff_seconds.observe(message.handoff_seconds)
        self.bytes.inc(message.sent)

    def engine(self, role: str, worker: int) -> EngineMetrics:
        """Those of one worker's engine."""
        own = CollectorRegistry()
        self._engines.add({"role": role, "worker": str(worker)}, own)
        return EngineMetrics(own)


class _Labelled(Collector):
    """Several registries with the same families as one, each with labels of its own."""

    def __init__(self) -> None:
        self._parts: list[tuple[dict[str, str], CollectorRegistry]] = []

    def add(self, labels: dict[str, str], registry: CollectorRegistry) -> None:
        self._parts.append((labels, registry))

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for labels, registry in self._parts:
            for family in registry.collect():
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged.samples += [sample._replace(labels=labels | sample.labels) for sample in family.samples]
        yield from families.values()

    def describe(self) -> Iterable[Metric]:
        return []
