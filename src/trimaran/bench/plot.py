"""Reports as pictures: plain SVG of horizontal bars in groups, without a plotting library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from trimaran.bench.compare import OURS, Report

WIDTH, LABELS, FIGURES = 960, 250, 150  # pixels: all, of what stands left of the bars, and right of them
BAR, GAP, HEAD = 14, 14, 72
COLOURS = ("#1b6ca8", "#5aa1d6", "#9ccbea", "#d9822b", "#e8b04a", "#a33d3d", "#7a5ea8", "#5b8c5a", "#8a8a8a")


@dataclass(frozen=True)
class Bar:
    """One bar: whose it is, its length as a share of the whole width, and the figure written behind it."""

    series: str
    share: float
    figure: str


@dataclass(frozen=True)
class Group:
    """Bars that are compared with each other."""

    label: str
    bars: Sequence[Bar]


def report_plot(report: Report) -> str:
    """Tokens a second of every subject in every case; the full width is each case's floor."""
    groups = []
    for line in report.lines:
        medians = {name: rate for name in report.subjects if (rate := line.median(name)) is not None}
        bars = [Bar(name, rate / line.floor, f"{rate:,.0f} tok/s") for name, rate in medians.items()]
        groups.append(Group(f"{line.case.name} (floor {line.floor:,.0f})", bars))
    machine = report.machine
    about = f"{report.model}: {report.formats}; {machine['cpu']}, {machine['threads']} threads"
    return draw("tokens/s; the full width is the physical floor of each case", about, groups, OURS)


def load_plot(figures: Mapping[str, Any]) -> str:
    """Median, p95 and p99 of each time of a load; the full width is the longest p99 of its group."""
    groups = []
    for name in ("ttft", "tpot", "gap", "e2e"):
        times: dict[str, float] = figures[f"{name}_ms"] or {}
        longest = max(times.values(), default=0.0) or 1.0
        bars = [Bar(share, value / longest, f"{value:,.2f} ms") for share, value in times.items()]
        groups.append(Group(name.upper() if name != "gap" else "gap between pieces", bars))
    title = f"{figures['model']}: {figures['output_tokens_per_second']:,.1f} output tokens/s, "
    title += f"{figures['ok']} ok, {figures['failed']} failed"
    return draw(title, str(figures["setting"]), groups)


def draw(title: str, about: str, groups: Sequence[Group], first: Sequence[str] = ()) -> str:
    """The picture as SVG text. Colours go by series, those of ``first`` before all others."""
    found = [bar.series for group in groups for bar in group.bars]
    series = list(dict.fromkeys([*(name for name in first if name in found), *found]))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(series)}
    scale = WIDTH - LABELS - FIGURES
    parts = [_text(12, 22, title, "bold"), _text(12, 40, about), *_legend(colours)]
    y = HEAD
    for group in groups:
        middle = y + max(len(group.bars), 1) * BAR / 2 + 4
        parts.append(_text(LABELS - 8, middle, group.label, anchor="end"))
        for bar in group.bars:
            length = scale * min(max(bar.share, 0.0), 1.0)
            parts.append(_box(LABELS, y, length, BAR - 2, colours[bar.series], f"{bar.series}: {bar.figure}"))
            parts.append(_text(LABELS + length + 4, y + BAR - 4, bar.figure))
            y += BAR
        y += GAP if group.bars else BAR + GAP
    edges = " ".join(f"M{x} {HEAD - 6}V{y - GAP + 6}" for x in (LABELS, LABELS + scale))
    parts.append(f'<path d="{edges}" stroke="#888" fill="none"/>')
    size = f'width="{WIDTH}" height="{y}" font-family="sans-serif" font-size="11"'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', '<rect width="100%" height="100%" fill="white"/>']
    return "\n".join([*head, *parts, "</svg>\n"])


def _legend(colours: Mapping[str, str]) -> list[str]:
    parts, x = [], 12.0
    for name, colour in colours.items():
        parts += [_box(x, 50, 10, 10, colour, name), _text(x + 14, 59, name)]
        x += 30 + 6.2 * len(name)
    return parts


def _box(x: float, y: float, width: float, height: float, colour: str, tip: str) -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}"'
    return f'<rect {size} fill="{colour}"><title>{escape(tip)}</title></rect>'


def _text(x: float, y: float, text: str, weight: str = "normal", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" text-anchor="{anchor}">{escape(text)}</text>'
