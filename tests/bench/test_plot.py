from pathlib import Path

import pytest

from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat
from trimaran.bench.cases import Decode, Mixed, Prefill
from trimaran.bench.closed_loop import Flow
from trimaran.bench.compare import Line, Report
from trimaran.bench.kv_report import KVReport, KVSetup, Level
from trimaran.bench.pictures import kv_plot, load_plot, report_plot, weights_plot
from trimaran.bench.plot import Bar, Group, check_plots, draw_bars, save
from trimaran.bench.weights import WeightsReport

MACHINE = {"cpu": "a <fast> one", "threads": 2}


def parse(figure) -> tuple[list[str], dict[str, float]]:
    """All texts of a diagram's axis and bars, and the length of each bar by the figure behind it."""
    [axes] = figure.axes
    figures = [text.get_text() for text in axes.texts]
    lengths = {text: bar.get_width() for text, bar in zip(figures, axes.patches, strict=True)}
    return [label.get_text() for label in axes.get_yticklabels()] + figures, lengths


def test_bars_are_shares_of_the_floor():
    lines = [
        Line(Decode(128, 8), [200.0], {"engine": [100.0], "peer": [50.0]}),
        Line(Mixed(4), [1000.0], {"engine": [250.0]}),
    ]
    figure = report_plot(Report("m", MACHINE, "f", 1, ("peer",), lines, [1.0], 0.0))
    texts, bars = parse(figure)
    assert bars == {"100 tok/s": 0.5, "50 tok/s": 0.25, "250 tok/s": 0.25}
    assert "decode 1 x depth 128 (floor 200)" in texts
    assert "a <fast> one, 2 threads" in figure.get_suptitle()


def test_a_load_is_drawn_even_when_nothing_came():
    times = {"median": 10.0, "p95": 20.0, "p99": 40.0}
    figures = {"ttft_ms": times, "tpot_ms": None, "gap_ms": None, "e2e_ms": times}
    figures |= {"model": "m", "setting": "s", "output_tokens_per_second": 12.5, "ok": 1, "failed": 0}
    figure = load_plot(figures)
    texts, bars = parse(figure)
    assert bars["20.00 ms"] == bars["40.00 ms"] / 2
    assert {"TTFT", "TPOT", "gap between pieces", "E2E"} <= set(texts)
    assert "m: 12.5 output tokens/s, 1 ok, 0 failed" in figure.get_suptitle()


def test_a_bar_never_leaves_the_picture():
    _, bars = parse(draw_bars("t", "a", [Group("g", [Bar("s", 1.5, "much")])]))
    assert bars == {"much": 1.0}


def kv_report() -> KVReport:
    setup = KVSetup(Path("m"), 2**20, (KVFormat.BF16, KVFormat.INT8), (1, 2))
    levels = [Level(fmt, n, [Flow(seconds=1.0, tokens=10 * n, gaps=[0.1])]) for n in (1, 2) for fmt in setup.formats]
    return KVReport(setup, MACHINE, levels=levels)


def test_concurrency_is_drawn_by_format():
    rates, gaps = kv_plot(kv_report()).axes
    assert [line.get_label() for line in rates.lines] == ["bf16", "int8"]
    assert rates.lines[0].get_xydata().tolist() == [[1, 10], [2, 20]]
    assert gaps.lines[1].get_xydata().tolist() == [[1, 100], [2, 100]]


def test_weights_are_drawn_over_the_first():
    cases = [Decode(8, 4, 1), Decode(8, 4, 2), Prefill(8)]
    rates = {(case.name, name): [rate] for case in cases for name, rate in (("int4", 20.0), ("int8", 10.0))}
    report = WeightsReport(MACHINE, 1, cases, sizes={"int4": 1, "int8": 2}, rates=rates)
    _, ratios = weights_plot(report).axes
    assert ratios.lines[1].get_xydata().tolist() == [[1, 0.5], [2, 0.5]]


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".html", b"<!doctype html>")])
def test_a_picture_has_the_format_of_its_name(tmp_path, suffix, start):
    path = tmp_path / f"plot{suffix}"
    save(kv_plot(kv_report()), path, "a table & more\n<second line>")
    written = path.read_bytes()
    assert written.startswith(start)
    if suffix == ".html":
        assert b"<svg" in written
        assert b"<pre>a table &amp; more\n&lt;second line&gt;</pre>" in written


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_work(monkeypatch):
    with pytest.raises(ConfigError, match=r"must end in \.svg, \.png, \.html"):
        check_plots([Path("plot.gif")])
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'trimaran\[plot\]'"):
        check_plots([Path("plot.png")])
