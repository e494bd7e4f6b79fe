from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.checkpoint.model_files import Gguf, Tensor
from tests.server.byte_model import write_byte_model

from trimaran.base.errors import CheckpointError, EngineDiedError, UnsupportedError
from trimaran.bench.capped_hub import COMMIT, REPOSITORY, Pace, capped_hub
from trimaran.bench.coldstart import OTHER, VARIANTS, Report, Start, Variant, start_server
from trimaran.bench.far_start import FarStart, run_far_start
from trimaran.bench.gguf_split import split_gguf
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve


def test_a_start_says_what_it_went_to(tmp_path: Path) -> None:
    start = start_server(str(write_byte_model(tmp_path)), ["--executor", "null"], {"TRIMARAN_HOME": str(tmp_path)})
    assert list(start.phases) == ["interpreter", "open", "warm-up", "canary"]
    assert 0 < sum(start.phases.values()) < start.ready
    assert sum(start.all_phases().values()) == pytest.approx(start.ready)
    assert start.download == 0


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineDiedError, match="no such file"):
        start_server(str(tmp_path / "none.gguf"), [], {})


def report() -> Report:
    report = Report("m", rounds=3, threads=2, foreign_cores=0.01)
    for number, variant in enumerate(VARIANTS):
        phases = {"interpreter": 0.1, ("map" if variant.source == "packed" else "pack"): 0.1 * (number + 1)}
        report.starts[variant] = [Start(seconds + number / 10, phases) for seconds in (0.9, 1.0, 1.4)]
    return report


def test_the_report_has_a_row_for_each_phase() -> None:
    text = report().to_text()
    assert "other processes used 0.01 cores" in text
    rows = {line[:16].strip(): line[16:].split() for line in text.splitlines()[2:]}
    assert rows["interpreter"] == ["100", "10.0", "%", "100", "9.1", "%", "100", "8.3", "%", "100", "7.7", "%"]
    assert rows["pack"] == ["100", "10.0", "%", "200", "18.2", "%", "-", "-"]
    assert rows["map"][:2] == ["-", "-"]
    assert rows["ready"] == ["1000", "1100", "1200", "1300"]
    assert rows[OTHER][0] == "800"
    assert "(900 - 1400)" in text
    assert "verification: 1.10 times the time without, from packed weights 1.08" in text
    names = [line[:16].strip() for line in text.splitlines()[2:]]
    assert names.index(OTHER) == names.index("ready") - 1


def test_the_report_as_json() -> None:
    found = report().to_json()
    assert found["verification_costs"]["files"] == pytest.approx(1.1)
    assert [start["source"] for start in found["starts"]] == ["files", "files", "packed", "packed"]
    assert found["starts"][0]["phases"]["pack"] == pytest.approx(0.1)


def test_flags_of_a_way_to_start() -> None:
    assert Variant("files", verified=False).flags == ["--packed-cache-bytes", "0", "--verify", "never"]
    assert Variant("packed", verified=True).flags[-1] == "auto"


def test_a_connection_gets_so_many_bytes_a_second() -> None:
    now = 0.0
    pace = Pace(1000.0, lambda: now)
    waited = 0.0
    for _ in range(10):
        wait = pace.sent(100)
        now += wait
        waited += wait
    assert waited == pytest.approx(1.0)
    now += 50.0
    assert pace.sent(1000) > 0.9, "time that was not used is lost"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    file = Gguf(
        metadata=[("general.architecture", "str", "llama"), ("tokens", "[str]", ["a", "b"])],
        tensors=[
            Tensor(f"t{n}", (4, 32), "F32", rng.standard_normal((4, 32)).astype("<f4").tobytes()) for n in range(7)
        ],
    )
    path = tmp_path / "m.gguf"
    path.write_bytes(file.build())
    return path


def test_a_file_in_parts_holds_the_same(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    files = split_gguf(model, folder, 3)
    assert [file.name for file in files] == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    with open_checkpoint(model) as whole, open_checkpoint(files[0]) as parts:
        assert {
            name: value for name, value in parts.metadata.items() if not name.startswith("split.")
        } == whole.metadata
        for one, other in zip(whole.tensors(), parts.tensors(), strict=True):
            assert (one.name, one.shape, one.fmt) == (other.name, other.shape, other.fmt)
            np.testing.assert_array_equal(one.data, other.data)
    with pytest.raises(CheckpointError, match="not one GGUF file"):
        split_gguf(files[0], folder, 2)
    with pytest.raises(CheckpointError, match="at least 8 tensors"):
        split_gguf(model, folder, 8)


def test_the_hub_serves_a_model_and_ranges_of_it(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    files = split_gguf(model, folder, 2)
    with capped_hub(files, 1e9) as url:
        address = f"{url}/{REPOSITORY}/resolve/{COMMIT}/{files[1].name}"
        answer = httpx.get(address, headers={"Range": "bytes=10-19"})
        assert (answer.status_code, answer.content) == (206, files[1].read_bytes()[10:20])
        assert httpx.get(f"{url}/another").status_code == 404
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("TRIMARAN_HOME", str(tmp_path / "home"))
        found = resolve(f"hf:{REPOSITORY}#{files[0].name}")
    with open_checkpoint(found.path) as checkpoint:
        assert len(checkpoint.names) == 7


def test_far_starts_are_compared() -> None:
    far = FarStart(20.0, 8, 4, 98_000_000, Start(2.0, {}, 1.0), fetch=5.0, hash=0.1, load=0.9)
    assert far.faster == pytest.approx(3.0)
    assert far.to_json()["in_turn"]["ready"] == pytest.approx(6.0)
    lines = far.to_text().splitlines()
    assert lines[2].split()[-4:] == ["5.00", "0.10", "0.90", "6.00"]
    assert lines[3].split()[-4:] == ["1.00", "-", "1.00", "2.00"]
    assert lines[4] == "3.0 times as fast"


def test_a_folder_must_be_sharded(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="not sharded"):
        run_far_start(write_byte_model(tmp_path), 1000.0, 2, 1, lambda _: None)
