import pytest

from trimaran.base.errors import ConfigError
from trimaran.bench.exchange import Timing
from trimaran.bench.load import Loaded
from trimaran.bench.serving import Figures, meets, parse_goals, spread


def timing(sent: float, ttft: float, tokens: int, tpot: float) -> Timing:
    pieces = [sent + ttft + tpot * place for place in range(tokens)]
    return Timing(sent, ended=pieces[-1], pieces=pieces, last=pieces[-1], prompt_tokens=8, output_tokens=tokens)


FAST, SLOW = timing(0, 0.1, 11, 0.01), timing(0.5, 0.5, 6, 0.1)
FAILED = Timing(1, ended=2, error="503: busy")


def test_percentiles_are_in_milliseconds():
    assert spread([n / 1000 for n in range(101)]) == pytest.approx({"median": 50, "p95": 95, "p99": 99})
    assert spread([]) is None


def test_goals_are_read():
    assert parse_goals("ttft:100  tpot:3.5") == {"ttft": 100, "tpot": 3.5}
    assert parse_goals("") == {}


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:nan", "itl:5", "ttft:100,tpot:20"])
def test_what_is_no_goal_is_refused(text):
    with pytest.raises(ConfigError, match="--goodput takes items like"):
        parse_goals(text)


def test_every_goal_must_be_met():
    assert meets(FAST, {"ttft": 101, "tpot": 11, "e2e": 201})
    assert not meets(FAST, {"ttft": 101, "tpot": 9})
    assert not meets(FAST, {"e2e": 150})
    assert not meets(FAILED, {"ttft": 1e9})
    assert meets(timing(0, 0.1, 1, 0), {"tpot": 1})


def test_figures_are_of_the_whole_load():
    figures = Figures(Loaded("m", [FAST, SLOW, FAILED]), {"ttft": 200.0}, "a test").to_json()
    assert (figures["ok"], figures["failed"], figures["errors"]) == (2, 1, {"503: busy": 1})
    assert (figures["seconds"], figures["output_tokens"], figures["prompt_tokens"]) == (2, 17, 16)
    assert (figures["output_tokens_per_second"], figures["requests_per_second"]) == (8.5, 1)
    assert (figures["goodput_share"], figures["goodput_requests_per_second"]) == (pytest.approx(1 / 3), 0.5)
    assert figures["ttft_ms"]["median"] == pytest.approx(300)
    assert figures["tpot_ms"]["median"] == pytest.approx(55)
    assert figures["gap_ms"]["median"] == pytest.approx(10)


def test_nothing_at_all_can_be_shown():
    figures = Figures(Loaded("m", interrupted=True, cut_off=3), {"ttft": 1.0}, "a test")
    assert figures.to_json()["ttft_ms"] is None
    assert "interrupted" in figures.to_text()
    assert "3 cut off" in figures.to_text()
