"""The check of page tags can be turned off and on within an engine, and its cost is told with how sure that is."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from engine.driving import greedy
from engine.tiny_model import write_model
from trimaran.base.errors import ConfigError
from trimaran.base.messages import Submit
from trimaran.bench.integrity import LEAST_PAIRS, WIDE, Changes, IntegrityReport, run_integrity
from trimaran.cli.app import app
from trimaran.engine.config import EngineConfig
from trimaran.engine.load import load_engine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "tiny", context=512)


def changes_of(pairs: int, spread: float, growth: float = 0.0) -> Changes:
    random = np.random.default_rng(1)
    off = [random.uniform(0.010, 0.011, 20) for _ in range(pairs)]
    return Changes(
        4,
        slower=list(random.normal(0.003, spread, pairs)),
        gaps_on=[gaps * (1 + growth) for gaps in off],
        gaps_off=off,
        checks=[0.0002] * pairs,
        entries=1000,
        seconds=9.0,
    )


def test_the_interval_narrows_with_pairs():
    few, many = changes_of(20, 0.02), changes_of(400, 0.02)
    assert not few.narrow
    assert many.narrow
    assert many.loss[1] <= WIDE < few.loss[1]
    assert many.loss[0] == pytest.approx(0.003, abs=0.003)
    assert not changes_of(LEAST_PAIRS - 1, 0.0).narrow


def test_growth_is_that_of_the_95th_percentile():
    growth, half = changes_of(50, 0.0, growth=0.04).growth
    assert growth == pytest.approx(0.04)
    assert half < WIDE


def test_a_burst_of_slow_steps_is_not_taken_for_growth():
    changes = changes_of(50, 0.0)
    changes.gaps_on[7] = changes.gaps_on[7] * 9
    assert changes.growth == pytest.approx((0.0, 0.0))
    assert not changes_of(LEAST_PAIRS, 0.0).narrow, "all its pairs are two blocks"


def test_the_table_says_when_time_ran_out():
    text = IntegrityReport("m", {"cpu": "c", "threads": 1, "isa": "i", "system": "s"}, [changes_of(20, 0.02)]).to_text()
    assert "4 sequences: stopped by the time limit, after 9 s; the intervals are not within 0.5%" in text
    assert (
        "time limit"
        not in IntegrityReport(
            "m", {"cpu": "c", "threads": 1, "isa": "i", "system": "s"}, [changes_of(300, 0.005)]
        ).to_text()
    )


def test_one_engine_runs_both_ways(tiny):
    report = run_integrity(tiny, [1, 3], output=200, threads=1, seconds=0.1, progress=lambda _: None)
    for changes in report.changes:
        assert len(changes.slower) >= LEAST_PAIRS
        assert len(changes.gaps_on) == len(changes.gaps_off) == len(changes.slower)
        assert changes.entries > 0
        assert 0 < changes.check_share < 1


def test_too_few_output_tokens_are_refused(tiny):
    with pytest.raises(ConfigError, match="20 output tokens are too few: 1 sequences need 39"):
        run_integrity(tiny, [1], output=20, threads=1, seconds=0.1, progress=lambda _: None)


def test_the_command(tiny):
    arguments = [
        "bench",
        "integrity",
        str(tiny),
        "--sequences",
        "2",
        "--seconds",
        "1",
        "--output-tokens",
        "200",
        "--threads",
        "1",
        "--json",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    [batch] = json.loads(result.stdout)["batches"]
    assert batch["sequences"] == 2
    assert {"throughput_loss", "itl_p95_growth", "check_share_of_step", "narrow"} <= batch.keys()


def test_what_is_off_is_not_checked_and_what_is_on_again_is(tiny):
    engine = load_engine(EngineConfig(model=str(tiny), threads=1, overlap=False))
    for token, name in enumerate("ab", 5):
        engine.submit(Submit(name, [token] * 40, greedy(100)))
    engine.step()
    table, (a, b) = engine.cache.groups[0].table, engine.sequences

    def check(on: bool) -> None:
        engine.executor.check_pages(on=on)
        engine.runner.expected = engine.cache.expected if on else None

    def swap() -> None:
        table[[a.slot, b.slot], 0] = table[[b.slot, a.slot], 0]

    check(on=False)
    swap()
    engine.step()
    assert engine.stats().page_faults == 0
    swap()
    check(on=True)
    engine.step()
    assert engine.stats().page_faults == 0
    swap()
    engine.step()
    assert engine.stats().page_faults == 2
    engine.close()
