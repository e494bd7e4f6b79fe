"""What ``trimaran bench pools`` prints: for each scene what each contender did, beside the first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.bench.pools import Run, Scene
from trimaran.bench.serving import SHARES, meets, spread


@dataclass(frozen=True)
class PoolsReport:
    """``runs`` has one list a scene, its contenders in order; ``goals`` are in milliseconds."""

    model: str
    machine: Mapping[str, Any]
    scenes: Sequence[Scene]
    runs: Sequence[Sequence[Run]]
    goals: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values; times in milliseconds unless named otherwise."""
        scenes = [
            {"scene": scene.name, "about": scene.about, "runs": [self._figures(run) for run in runs]}
            for scene, runs in zip(self.scenes, self.runs, strict=True)
        ]
        return {"model": self.model, "machine": dict(self.machine), "goals_ms": dict(self.goals), "scenes": scenes}

    def to_text(self) -> str:
        """A table for people."""
        all_ = self.to_json()
        goals = " ".join(f"{name}:{limit:g}" for name, limit in self.goals.items())
        lines = [f"{self.model}; {self.machine['cpu']}, {self.machine['threads']} threads; goals {goals} (ms)"]
        for scene in all_["scenes"]:
            lines += ["", f"{scene['scene']}: {scene['about']}", _HEAD]
            for run in scene["runs"]:
                lines.append(_line(run))
                lines += [f"  {run['failed']} failed: {error}" for error in run["errors"]]
                if run["handoff_ms"] is not None:
                    moved = f"{run['moved_bytes'] / 1e6:,.1f} MB in {run['handoff_ms']:.1f} ms each"
                    lines.append(f"  handed over {moved}, {run['handoff_share']:.1%} of the time of prefill")
        return "\n".join(lines)

    def _figures(self, run: Run) -> dict[str, Any]:
        timings = [*run.streams, *run.others]
        good = [timing for timing in timings if timing.error is None]
        gaps = [gap for timing in run.streams or run.others if timing.error is None for gap in timing.gaps]
        met = sum(meets(timing, self.goals) for timing in timings)
        moved = run.metrics.get("trimaran_handoff_seconds_count", 0.0)
        handoff = run.metrics.get("trimaran_handoff_seconds_sum", 0.0)
        prefill = run.metrics.get("trimaran_handoff_prefill_seconds_sum", 0.0)
        return {
            "contender": run.contender,
            "requests": len(timings),
            "failed": len(timings) - len(good),
            "errors": sorted({timing.error for timing in timings if timing.error is not None})[:3],
            "seconds": run.seconds,
            "output_tokens_per_second": sum(timing.tokens for timing in good) / run.seconds,
            "ttft_ms": spread([timing.ttft for timing in run.others if timing.error is None]),
            "itl_ms": spread(gaps),
            "goodput_share": met / len(timings),
            "goodput_requests_per_second": met / run.seconds,
            "moved_bytes": run.metrics.get("trimaran_handoff_bytes_total", 0.0),
            "handoff_ms": 1e3 * handoff / moved if moved else None,
            "handoff_share": handoff / prefill if prefill else None,
        }


_COLUMNS = [*(f"{what} {share}" for what in ("TTFT", "ITL") for share in SHARES), "tok/s", "goodput/s", "met"]
_HEAD = f"  {'ms':28}" + "".join(f"{name:>12}" for name in _COLUMNS)


def _line(run: Mapping[str, Any]) -> str:
    cells = []
    for name in ("ttft_ms", "itl_ms"):
        cells += [f"{run[name][share]:,.1f}" if run[name] else "-" for share in SHARES]
    cells += [f"{run['output_tokens_per_second']:.1f}", f"{run['goodput_requests_per_second']:.2f}"]
    return f"  {run['contender']:28}" + "".join(f"{cell:>12}" for cell in [*cells, f"{run['goodput_share']:.0%}"])
