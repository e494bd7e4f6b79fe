"""Which picture each report becomes."""

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trimaran.bench.cases import Decode
from trimaran.bench.compare import OURS, Report
from trimaran.bench.kv_report import KVReport
from trimaran.bench.plot import Bar, Curves, Group, draw_bars, draw_curves
from trimaran.bench.serving import SHARES
from trimaran.bench.sharing import SharingReport
from trimaran.bench.weights import WeightsReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def report_plot(report: Report) -> "Figure":
    """Tokens a second of every subject in every case; the full width is each case's floor."""
    groups = []
    for line in report.lines:
        medians = {name: rate for name in report.subjects if (rate := line.median(name)) is not None}
        bars = [Bar(name, rate / line.floor, f"{rate:,.0f} tok/s") for name, rate in medians.items()]
        groups.append(Group(f"{line.case.name} (floor {line.floor:,.0f})", bars))
    machine = report.machine
    about = f"{report.model}: {report.formats}; {machine['cpu']}, {machine['threads']} threads"
    return draw_bars("tokens/s; the full width is the physical floor of each case", about, groups, OURS)


def load_plot(figures: Mapping[str, Any]) -> "Figure":
    """Median, p95 and p99 of each time of a load; the full width is the longest p99 of its group."""
    groups = []
    for name in ("ttft", "tpot", "gap", "e2e"):
        times: dict[str, float] = figures[f"{name}_ms"] or {}
        longest = max(times.values(), default=0.0) or 1.0
        bars = [Bar(share, value / longest, f"{value:,.2f} ms") for share, value in times.items()]
        groups.append(Group(name.upper() if name != "gap" else "gap between pieces", bars))
    title = f"{figures['model']}: {figures['output_tokens_per_second']:,.1f} output tokens/s, "
    title += f"{figures['ok']} ok, {figures['failed']} failed"
    return draw_bars(title, str(figures["setting"]), groups)


def pools_plot(figures: Mapping[str, Any]) -> "Figure":
    """Median, p95 and p99 of waits and gaps by contender in every scene; the full width is the longest p99."""
    groups = []
    for scene in figures["scenes"]:
        for what, name in (("TTFT", "ttft_ms"), ("ITL", "itl_ms")):
            for share in SHARES:
                times = {run["contender"]: run[name][share] for run in scene["runs"] if run[name]}
                longest = max(times.values(), default=0.0) or 1.0
                bars = [Bar(who, value / longest, f"{value:,.1f} ms") for who, value in times.items()]
                groups.append(Group(f"{scene['scene']}: {what} {share}", bars))
    about = "; ".join(scene["about"] for scene in figures["scenes"])
    return draw_bars(f"{figures['model']}: one engine and two pools on the same cores", about, groups)


def kv_plot(report: KVReport) -> "Figure":
    """Tokens a second and the p95 time between tokens, over how many run together, by format of pages."""
    by_format = {fmt.value: [level for level in report.levels if level.fmt is fmt] for fmt in report.setup.formats}
    rates = {name: [(level.concurrency, level.rate) for level in levels] for name, levels in by_format.items()}
    gaps = {name: [(level.concurrency, level.gap(95)) for level in levels] for name, levels in by_format.items()}
    setup = report.setup
    title = f"{setup.model.name}: {setup.memory / 2**20:,.0f} MiB of pages, {setup.prompt} + {setup.output} tokens"
    about = f"{report.machine['cpu']}, {report.machine['threads']} threads"
    together = "requests together"
    return draw_curves(title, about, [Curves(together, "tokens/s", rates), Curves(together, "ITL p95, ms", gaps)])


def sharing_plot(report: SharingReport) -> "Figure":
    """Tokens a second of every case, over the faster way of reading pages."""
    groups = []
    for case in report.cases:
        rates = {"apart": statistics.median(case.apart), "together": statistics.median(case.together)}
        bars = [Bar(name, rate / max(rates.values()), f"{rate:,.0f} tok/s") for name, rate in rates.items()]
        groups.append(Group(f"{case.name}: {case.gain:+.1%}", bars))
    about = f"{report.setup.model.name}, {report.setup.kv_format} pages; {report.machine['cpu']}"
    return draw_bars("shared pages read apart and together, tokens/s", about, groups)


def weights_plot(report: WeightsReport) -> "Figure":
    """Tokens a second by number of sequences, and over those of the first candidate."""
    cases = [case for case in report.cases if isinstance(case, Decode)]
    first = next(iter(report.sizes))
    rates = {name: [(case.sequences, report.median(case, name)) for case in cases] for name in report.sizes}
    ratios = {
        name: [(x, y / base) for (x, y), (_, base) in zip(points, rates[first], strict=True)]
        for name, points in rates.items()
    }
    about = f"{report.machine['cpu']}, {report.machine['threads']} threads"
    diagrams = [Curves("sequences", "decode, tokens/s", rates), Curves("sequences", f"over {first}", ratios)]
    return draw_curves("decoding by format of weights", about, diagrams)
