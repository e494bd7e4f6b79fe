import json

import pytest
from typer.testing import CliRunner

from trimaran import _probe
from trimaran.bench import limits
from trimaran.cli.app import app


@pytest.fixture
def probe(monkeypatch):
    """A machine of round figures: 10 GB/s, 1 TOP/s and 0.1 TFLOP/s a thread; 1 us a job, 0.5 us a stage."""
    monkeypatch.setattr(_probe, "read_seconds", lambda size, threads, passes: [size / threads / 1e10])
    monkeypatch.setattr(_probe, "multiply_rate", lambda int8, threads, passes: [threads * (1e12 if int8 else 1e11)])
    monkeypatch.setattr(_probe, "team_seconds", lambda threads, stages, passes: [5e-7 + 5e-7 * stages])


@pytest.mark.usefixtures("probe")
def test_all_limits_are_printed():
    result = CliRunner().invoke(app, ["bench", "limits", "--threads", "2"])
    assert result.exit_code == 0, result.output
    rows = {line[:16].strip(): line[16:].split() for line in result.stdout.splitlines()}
    assert rows["1 MiB"] == rows["1 GiB"] == ["10.0", "20.0"]
    assert (rows["int8"], rows["fp32"]) == (["1.000", "2.000"], ["0.100", "0.200"])
    assert result.stdout.rstrip().endswith("team of 2: 1.00 us a step, 0.50 us more for each op")


@pytest.mark.usefixtures("probe")
def test_json_has_every_figure():
    result = CliRunner().invoke(app, ["bench", "limits", "--threads", "1", "--json"])
    found = json.loads(result.stdout)
    assert found["threads"] == [1]
    assert list(found["read_bytes_per_second"]) == [str(1 << power) for power in range(20, 31)]
    assert found["int8_ops_per_second"] == [1e12]
    assert found["team_stage_seconds"] == pytest.approx(5e-7)
    assert found["machine"]["isa"] == _probe.isa()


def test_caches_and_huge_pages_are_read(monkeypatch, tmp_path):
    for number, facts in enumerate([("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K")]):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, fact in zip(("level", "type", "size"), facts, strict=True):
            (folder / name).write_text(fact + "\n")
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    monkeypatch.setattr(limits, "CPU", tmp_path)
    monkeypatch.setattr(limits, "HUGE_PAGES", tmp_path / "enabled")
    assert limits.caches() == {"L1d": "48K", "L1i": "32K", "L2": "1024K"}
    assert limits.huge_pages() == "madvise"
    monkeypatch.setattr(limits, "HUGE_PAGES", tmp_path / "gone")
    assert limits.huge_pages() == "unknown"


def test_the_team_meets():
    assert min(_probe.team_seconds(2, 3, 2)) > 0
