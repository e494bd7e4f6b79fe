"""What ``/metrics`` shows of one engine process. Its counters arrive as ``Beat`` values that start at zero with each
process; what is exported goes on rising over a restart.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from trimaran.base.messages import Beat


class EngineMetrics:
    """The metrics of one engine, in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.up = Gauge("trimaran_engine_up", "1 while the engine process runs", registry=registry)
        self.restarts = Counter(
            "trimaran_engine_restarts", "Engine processes started after the first", registry=registry
        )
        self._start = Gauge(
            "trimaran_start_seconds",
            "What the last start of the engine took, by phase; phase ready: all of it",
            ["phase"],
            registry=registry,
        )
        self._counters = {
            "steps": Counter("trimaran_steps", "Engine steps", registry=registry),
            "step_seconds": Counter(
                "trimaran_step_seconds", "Time in which the engine had steps to run", registry=registry
            ),
            "executor_seconds": Counter(
                "trimaran_executor_seconds",
                "Of the time of steps, that in which the executor had one; the rest waited for Python",
                registry=registry,
            ),
            "prompt_tokens": Counter(
                "trimaran_prompt_tokens", "Prompt tokens of admitted sequences", registry=registry
            ),
            "cached_tokens": Counter(
                "trimaran_cached_tokens", "Prompt tokens found in the prefix cache", registry=registry
            ),
            "generated_tokens": Counter("trimaran_generated_tokens", "Tokens generated", registry=registry),
            "drafted_tokens": Counter(
                "trimaran_drafted_tokens", "Tokens of drafts that steps have tried", registry=registry
            ),
            "accepted_tokens": Counter(
                "trimaran_accepted_tokens", "Of these, tokens that the model would have said", registry=registry
            ),
            "page_faults": Counter(
                "trimaran_page_faults", "Cache pages that were not what a sequence expected", registry=registry
            ),
            "pages_distrusted": Counter(
                "trimaran_pages_distrusted",
                "Cache pages that were dropped because the canary of the worker that computed them deviated",
                registry=registry,
            ),
            "canary_checks": Counter(
                "trimaran_canary_checks", "Runs of the prompt whose logits are known", registry=registry
            ),
            "canary_deviations": Counter(
                "trimaran_canary_deviations",
                "Runs of the prompt whose logits are known that came out otherwise",
                registry=registry,
            ),
            "leases_expired": Counter(
                "trimaran_page_leases_expired",
                "Leases of cache pages whose transfer was not heard of in time",
                registry=registry,
            ),
            "links_rejected": Counter(
                "trimaran_links_rejected", "Connections for cache pages that were turned away", registry=registry
            ),
            "constrained_requests": Counter(
                "trimaran_constrained_requests", "Sequences held to a grammar or constraint", registry=registry
            ),
            "grammars_compiled": Counter(
                "trimaran_grammars_compiled", "Grammars compiled; others were known already", registry=registry
            ),
            "grammar_seconds": Counter(
                "trimaran_grammar_seconds", "Time in which grammars were compiled, beside the steps", registry=registry
            ),
            "mask_seconds": Counter(
                "trimaran_mask_seconds",
                "Of the time of steps, that in which it was worked out which tokens may come next",
                registry=registry,
            ),
            "preemptions": Counter("trimaran_preemptions", "Sequences that gave up their pages", registry=registry),
        }
        self._transfers_failed = Counter(
            "trimaran_transfers_failed",
            "Prompts that did not come from the worker that computed them",
            ["cause"],
            registry=registry,
        )
        self._gauges = {
            "running": Gauge("trimaran_sequences_running", "Sequences that take part in steps", registry=registry),
            "waiting": Gauge("trimaran_sequences_waiting", "Sequences that wait for a place", registry=registry),
            "leases": Gauge("trimaran_page_leases", "Open leases of cache pages for transfers", registry=registry),
        }
        self._pages = {
            "free": Gauge("trimaran_pages_free", "Cache pages that may be taken", ["window"], registry=registry),
            "cached": Gauge(
                "trimaran_pages_cached",
                "Cache pages that may be taken but still serve prefixes",
                ["window"],
                registry=registry,
            ),
            "quarantined": Gauge(
                "trimaran_pages_quarantined",
                "Cache pages out of use because something was wrong with them",
                ["window"],
                registry=registry,
            ),
            "total": Gauge("trimaran_pages", "Cache pages in all", ["window"], registry=registry),
        }
        self._shares = {
            ("unused", "slots"): Gauge(
                "trimaran_pages_unused_ratio",
                "Internal fragmentation: places behind the last token of sequences over all in cache pages in use",
                ["window"],
                registry=registry,
            ),
            ("jumps", "neighbours"): Gauge(
                "trimaran_pages_scattered_ratio",
                "External fragmentation: of neighbouring cache pages of sequences, those that are not in memory",
                ["window"],
                registry=registry,
            ),
        }
        self._last = Beat()

    def started(self) -> None:
        """A new engine process counts from zero."""
        self._last = Beat()
        self.up.set(1)

    def start_took(self, phases: Mapping[str, float], ready: float) -> None:
        """Seconds of an engine's start: by what they went to, and until requests could be taken."""
        self._start.clear()
        for phase, seconds in {**phases, "ready": ready}.items():
            self._start.labels(phase).set(seconds)

    def ended(self) -> None:
        self.up.set(0)
        for gauge in self._gauges.values():
            gauge.set(0)

    def observe(self, beat: Beat) -> None:
        """Takes over an engine's counters and gauges."""
        for name, counter in self._counters.items():
            counter.inc(max(0, getattr(beat, name) - getattr(self._last, name)))
        for cause, count in beat.transfers_failed.items():
            self._transfers_failed.labels(cause).inc(max(0, count - self._last.transfers_failed.get(cause, 0)))
        for name, gauge in self._gauges.items():
            gauge.set(getattr(beat, name))
        for name, gauge in self._pages.items():
            gauge.clear()  # two cache groups may have the same window
            for pages in beat.pages:
                gauge.labels(pages.window or "none").inc(getattr(pages, name))
        for (part, whole), gauge in self._shares.items():
            for window in {pages.window for pages in beat.pages}:
                parts, wholes = (
                    sum(getattr(pages, name) for pages in beat.pages if pages.window == window)
                    for name in (part, whole)
                )
                gauge.labels(window or "none").set(parts / wholes if wholes else 0)
        self._last = beat
