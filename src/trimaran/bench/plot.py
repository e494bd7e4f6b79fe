"""Reports as pictures, by matplotlib, which is no dependency of its own: SVG, PNG, or a page that has the table too."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from trimaran.base.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".html")
COLOURS = ("#1b6ca8", "#d9822b", "#5b8c5a", "#a33d3d", "#7a5ea8", "#5aa1d6", "#e8b04a", "#8a8a8a", "#333333")
INCH = 100  # pixels


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


@dataclass(frozen=True)
class Curves:
    """One of a picture's diagrams: points by series; x goes by factors of two."""

    x: str
    y: str
    points: Mapping[str, Sequence[tuple[float, float]]]


def check_plots(paths: Iterable[Path]) -> None:
    """Raises ``ConfigError`` before anything is measured, if a picture could not be drawn."""
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            raise ConfigError(f"--plot {path}: the name must end in {', '.join(SUFFIXES)}")
        try:
            import matplotlib.figure  # noqa: F401
        except ImportError:
            raise ConfigError("--plot needs matplotlib: pip install 'trimaran[plot]'") from None


def draw_bars(title: str, about: str, groups: Sequence[Group], first: Sequence[str] = ()) -> "Figure":
    """Horizontal bars in groups, from top to bottom. Colours go by series, those of ``first`` before all others."""
    from matplotlib.figure import Figure

    found = [bar.series for group in groups for bar in group.bars]
    series = list(dict.fromkeys([*(name for name in first if name in found), *found]))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(series)}
    rows = len(found) + len(groups)
    figure = Figure(figsize=(9.6, 1.2 + 0.16 * rows), layout="constrained")
    axes = figure.add_subplot()
    y, ticks = 0.0, []
    for group in groups:
        ticks.append((y + (len(group.bars) - 1) / 2, group.label))
        for bar in group.bars:
            share = min(max(bar.share, 0.0), 1.0)
            axes.barh(y, share, 0.85, color=colours[bar.series], label=bar.series)
            axes.text(share + 0.005, y, bar.figure, va="center", fontsize=8)
            y += 1
        y += 1
    axes.set_yticks([place for place, _ in ticks], [_plain(label) for _, label in ticks], fontsize=8)
    axes.set_xlim(0, 1.15)
    axes.set_xticks([0, 1], ["0", "full width"], fontsize=8)
    axes.axvline(1.0, color="#888888", linewidth=0.8)
    axes.invert_yaxis()
    _finish(figure, title, about)
    return figure


def draw_curves(title: str, about: str, diagrams: Sequence[Curves]) -> "Figure":
    """Diagrams side by side, that share their series."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 5 * len(diagrams), 4.6), layout="constrained")
    for place, diagram in enumerate(diagrams):
        axes = figure.add_subplot(1, len(diagrams), place + 1)
        for number, (name, points) in enumerate(diagram.points.items()):
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colour, label=_plain(name))
        xs = sorted({x for points in diagram.points.values() for x, _ in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(xs, [f"{x:g}" for x in xs], minor=False)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(_plain(diagram.x), fontsize=8)
        axes.set_ylabel(_plain(diagram.y), fontsize=8)
        axes.grid(alpha=0.3)
    _finish(figure, title, about)
    return figure


def save(figure: "Figure", path: Path, table: str) -> None:
    """Writes the picture in the format of its name; a page gets the ``table`` below it. Raises ``ConfigError``."""
    suffix = path.suffix.lower()
    try:
        if suffix == ".html":
            path.write_text(_page(figure, table), encoding="utf-8")
        else:
            figure.savefig(path, format=suffix.removeprefix("."), dpi=INCH)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error}") from error


def _finish(figure: "Figure", title: str, about: str) -> None:
    """Title, and a legend that has every series once."""
    figure.suptitle(f"{_plain(title)}\n{_plain(about)}", fontsize=9)
    known = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        known.update(dict(zip(labels, handles, strict=True)))
    if known:
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=min(6, len(known)), fontsize=8)


def _page(figure: "Figure", table: str) -> str:
    picture = StringIO()
    figure.savefig(picture, format="svg")
    drawing = picture.getvalue()
    title = escape(table.partition("\n")[0])
    return (
        f'<!doctype html>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"{drawing[drawing.index('<svg') :]}\n<pre>{escape(table)}</pre>\n"
    )


def _plain(text: str) -> str:
    """Text in which matplotlib finds no formulas."""
    return text.replace("$", r"\$")
