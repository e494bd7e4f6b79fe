"""What ``/metrics`` shows, in Prometheus' text format. Names are a contract: ``tests/server/test_metrics.py``.

Histograms are observed where the client sees the event: at the server's socket.
"""

from functools import cached_property

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest

from trimaran.server.batch_metrics import BatchMetrics
from trimaran.server.engine_metrics import EngineMetrics
from trimaran.server.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)


class Metrics:
    """All metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the exposition
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "trimaran_requests", "Answered HTTP requests", ["endpoint", "status"], registry=registry
        )
        self.errors = Counter(
            "trimaran_errors", "Errors that were answered, streams that ended in one, dropped connections", ["code"],
            registry=registry,
        )  # fmt: skip
        self.cancelled = Counter(
            "trimaran_requests_cancelled", "Requests whose client left before the end", registry=registry
        )
        self.tool_calls = Counter(
            "trimaran_tool_calls",
            "Calls of tools in answers, by whether they were sound",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("parsed", "malformed"):
            self.tool_calls.labels(outcome)
        self.continued = Counter(
            "trimaran_conversations_continued",
            "Chats that go on from one that was answered here",
            registry=registry,
        )
        self.rewritten = Counter(
            "trimaran_conversations_rewritten",
            "Of these, those whose earlier turns are written otherwise than before, so that the cache is of no use",
            registry=registry,
        )
        self.batches = BatchMetrics(registry)
        self.first_token = Histogram(
            "trimaran_time_to_first_token_seconds",
            "From the request's arrival to its first token",
            buckets=_SECONDS,
            registry=registry,
        )
        self.inter_token = Histogram(
            "trimaran_inter_token_seconds", "Between two tokens of one sequence", buckets=_SECONDS, registry=registry
        )
        self.request_seconds = Histogram(
            "trimaran_request_seconds",
            "From a generation request's arrival to its end",
            buckets=_SECONDS,
            registry=registry,
        )

    @cached_property
    def engine(self) -> EngineMetrics:
        """Those of the engine, where there is one and no pools."""
        return EngineMetrics(self.registry)

    def text(self) -> bytes:
        """The exposition; ``CONTENT_TYPE`` is its media type."""
        return generate_latest(self.registry)
