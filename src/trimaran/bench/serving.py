"""Figures of a load, as users feel them: time to the first token, time a token, gaps, and the share that met a goal.

TTFT is from sending to the first text; in an open loop, from when the request was due. TPOT is the time from the first
token to the last over the tokens after the first, one figure a request. Gaps are between pieces of text as they arrive,
all requests together; a piece is a token unless the server sends several at once. Failed requests count in none of
these, and never meet a goal.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimaran.base.errors import ConfigError
from trimaran.bench.exchange import Timing
from trimaran.bench.load import Loaded

GOALS = ("ttft", "tpot", "e2e")
SHARES = {"median": 50, "p95": 95, "p99": 99}


def parse_goals(text: str) -> dict[str, float]:
    """Milliseconds by goal, from text like ``ttft:100 tpot:20``; raises ``ConfigError``."""
    goals = {}
    for item in text.split():
        name, _, limit = item.partition(":")
        try:
            goals[name] = float(limit)
        except ValueError:
            goals[name] = 0.0
        if name not in GOALS or not goals[name] > 0:
            raise ConfigError(f"--goodput takes items like ttft:100 (ms; {', '.join(GOALS)}), not {item!r}")
    return goals


def meets(timing: Timing, goals: Mapping[str, float]) -> bool:
    """Whether a request was answered and is within every goal; with one token there is no TPOT to miss."""
    if timing.error is not None:
        return False
    seen = {"ttft": timing.ttft, "tpot": timing.tpot or 0.0, "e2e": timing.e2e}
    return all(1e3 * seen[name] <= limit for name, limit in goals.items())


def spread(seconds: Sequence[float]) -> dict[str, float] | None:
    """Median, p95 and p99 in milliseconds; None of nothing."""
    if not seconds:
        return None
    return {name: float(np.percentile(seconds, share)) * 1e3 for name, share in SHARES.items()}


@dataclass(frozen=True)
class Figures:
    """All figures of one load. Rates are over the time from the first sending to the last end."""

    loaded: Loaded
    goals: dict[str, float]
    setting: str  # the load in words

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values; times in milliseconds unless named otherwise."""
        loaded, timings = self.loaded, self.loaded.timings
        good = [timing for timing in timings if timing.error is None]
        seconds = max(timing.ended for timing in timings) - min(timing.sent for timing in timings) if timings else 0.0
        output = sum(timing.tokens for timing in good)
        met = sum(meets(timing, self.goals) for timing in timings)
        return {
            "model": loaded.model,
            "setting": self.setting,
            "ok": len(good),
            "failed": len(timings) - len(good),
            "cut_off": loaded.cut_off,
            "interrupted": loaded.interrupted,
            "errors": dict(Counter(timing.error for timing in timings if timing.error).most_common(5)),
            "seconds": seconds,
            "prompt_tokens": sum(timing.prompt_tokens or 0 for timing in good),
            "output_tokens": output,
            "tokens_counted_by": "server" if all(timing.output_tokens is not None for timing in good) else "pieces",
            "output_tokens_per_second": output / seconds if seconds else 0.0,
            "requests_per_second": len(good) / seconds if seconds else 0.0,
            "ttft_ms": spread([timing.ttft for timing in good]),
            "tpot_ms": spread([tpot for timing in good if (tpot := timing.tpot) is not None]),
            "gap_ms": spread([gap for timing in good for gap in timing.gaps]),
            "e2e_ms": spread([timing.e2e for timing in good]),
            "goals_ms": self.goals,
            "goodput_share": met / len(timings) if self.goals and timings else None,
            "goodput_requests_per_second": met / seconds if self.goals and seconds else None,
            "worst_lateness_ms": 1e3 * loaded.lateness,
            "client_cores": loaded.client_cores,
        }

    def to_text(self) -> str:
        """A table for people."""
        all_ = self.to_json()
        lines = [f"{all_['model']}: {self.setting}" + (", interrupted" if all_["interrupted"] else "")]
        lines.append(
            f"requests: {all_['ok']} ok, {all_['failed']} failed"
            + (f", {all_['cut_off']} cut off" if all_["cut_off"] else "")
            + f"; {all_['seconds']:.2f} s, {all_['prompt_tokens']} tokens in, {all_['output_tokens']} out"
        )
        lines += [f"  {count} x {error}" for error, count in all_["errors"].items()]
        if all_["tokens_counted_by"] == "pieces":
            lines.append("the server does not count tokens: pieces of text count as tokens")
        lines.append(
            f"{all_['output_tokens_per_second']:.1f} output tokens/s, {all_['requests_per_second']:.2f} requests/s"
        )
        if all_["goodput_share"] is not None:
            goals = " ".join(f"{name}:{limit:g}" for name, limit in self.goals.items())
            rate = all_["goodput_requests_per_second"] or 0.0
            lines.append(f"goodput ({goals}): {all_['goodput_share']:.1%} of requests, {rate:.2f} requests/s")
        late = f", sent {all_['worst_lateness_ms']:.1f} ms late at worst" if self.loaded.lateness else ""
        lines.append(f"the client used {all_['client_cores']:.2f} cores{late}")
        lines += ["", f"{'ms':12}" + "".join(f"{name:>10}" for name in SHARES)]
        for name in ("ttft", "tpot", "gap", "e2e"):
            values = all_[f"{name}_ms"] or {}
            cells = (f"{values[share]:.2f}" if values else "-" for share in SHARES)
            lines.append(f"{name.upper() if name != 'gap' else 'gap':12}" + "".join(f"{cell:>10}" for cell in cells))
        return "\n".join(lines)
