"""What ``/metrics`` shows of batches."""

from prometheus_client import CollectorRegistry, Counter, Gauge

OUTCOMES = ("completed", "failed", "expired", "cancelled")


class BatchMetrics:
    """Those of one server since its start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.unfinished = Gauge("trimaran_batches_unfinished", "Batches that have not ended", registry=registry)
        self.running = Gauge(
            "trimaran_batch_requests_running", "Lines of batches that are being answered", registry=registry
        )
        self.requests = Counter(
            "trimaran_batch_requests", "Lines of batches, by what became of them", ["outcome"], registry=registry
        )
        self.retried = Counter(
            "trimaran_batch_requests_retried",
            "Lines of batches that were asked again because an engine died with them",
            registry=registry,
        )
        for outcome in OUTCOMES:
            self.requests.labels(outcome)
