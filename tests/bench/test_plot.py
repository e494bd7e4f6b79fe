from xml.etree import ElementTree

import pytest

from trimaran.bench.cases import Decode, Mixed
from trimaran.bench.compare import Line, Report
from trimaran.bench.plot import FIGURES, LABELS, WIDTH, Bar, Group, draw, load_plot, report_plot

SVG = "{http://www.w3.org/2000/svg}"


def parse(picture: str) -> tuple[list[str], dict[str, float]]:
    """All texts, and the width of each box by its tip; a legend's box has a series for its tip."""
    root = ElementTree.fromstring(picture)
    boxes = {box.find(f"{SVG}title").text: float(box.get("width")) for box in root.iter(f"{SVG}rect") if len(box)}
    return [text.text for text in root.iter(f"{SVG}text")], boxes


def test_bars_are_shares_of_the_floor():
    lines = [
        Line(Decode(128, 8), [200.0], {"engine": [100.0], "peer": [50.0]}),
        Line(Mixed(4), [1000.0], {"engine": [250.0]}),
    ]
    machine = {"cpu": "a <fast> one", "threads": 2}
    texts, boxes = parse(report_plot(Report("m", machine, "f", 1, ("peer",), lines, [1.0], 0.0)))
    scale = WIDTH - LABELS - FIGURES
    assert boxes["engine: 100 tok/s"] == pytest.approx(scale / 2, abs=0.1)
    assert boxes["peer: 50 tok/s"] == boxes["engine: 250 tok/s"] == pytest.approx(scale / 4, abs=0.1)
    assert "decode 1 x depth 128 (floor 200)" in texts
    assert any("a <fast> one, 2 threads" in text for text in texts)


def test_a_load_is_drawn_even_when_nothing_came():
    times = {"median": 10.0, "p95": 20.0, "p99": 40.0}
    figures = {"ttft_ms": times, "tpot_ms": None, "gap_ms": None, "e2e_ms": times}
    figures |= {"model": "m", "setting": "s", "output_tokens_per_second": 12.5, "ok": 1, "failed": 0}
    texts, boxes = parse(load_plot(figures))
    assert boxes["p95: 20.00 ms"] == pytest.approx(boxes["p99: 40.00 ms"] / 2, abs=0.1)
    assert {"TTFT", "TPOT", "gap between pieces", "E2E"} <= set(texts)
    assert "m: 12.5 output tokens/s, 1 ok, 0 failed" in texts


def test_a_bar_never_leaves_the_picture():
    _, boxes = parse(draw("t", "a", [Group("g", [Bar("s", 1.5, "much")])]))
    assert boxes["s: much"] == WIDTH - LABELS - FIGURES
