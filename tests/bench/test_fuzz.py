"""The short form of ``python bench/fuzz.py``, and that it sees what it looks for."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from trimaran.bench.fuzz import reader_worker, readers
from trimaran.bench.fuzz.bodies import WrongAnswerError, _judge, fuzz_bodies
from trimaran.bench.fuzz.damage import damaged_bytes, damaged_json, damaged_text
from trimaran.bench.fuzz.model_samples import gguf_sample, write_folder
from trimaran.bench.fuzz.reader_worker import answer
from trimaran.bench.fuzz.readers import Reader, fuzz_readers
from trimaran.bench.fuzz.tally import Tally, times

WORKER = """
import json, os, sys, time
for line in sys.stdin:
    path = json.loads(line)["path"]
    if "crash" in path:
        os.abort()
    if "hang" in path:
        time.sleep(60)
    print(json.dumps({"outcome": "read", "detail": ""}), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The sample in the Hugging Face layout."""
    path = tmp_path / "tiny"
    path.mkdir()
    return write_folder(path)


def test_the_samples_are_right(folder, tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(gguf_sample().build())
    assert answer("gguf", tmp_path / "tiny.gguf") == {"outcome": "read", "detail": ""}
    assert answer("folder", folder) == {"outcome": "read", "detail": ""}


def test_damage_is_drawn_from_the_seed(tmp_path):
    for damage in (
        lambda random: damaged_bytes(random, bytes(range(256))),
        lambda random: damaged_json(random, {"a": [1, {"b": "c"}]}),
        lambda random: damaged_text(random, "a {{ b }} c", ("{{", "x")),
    ):
        results = [damage(Random(seed)) for seed in range(30)]
        assert results == [damage(Random(seed)) for seed in range(30)]
        assert len({repr(result) for result in results}) > 20


def test_a_case_does_not_depend_on_those_before():
    """And what is drawn is never a part of itself, which JSON could not hold."""
    value = {"a": [1, {"b": "c"}], "d": {}}
    first = [json.dumps(damaged_json(Random(seed), value)) for seed in range(400)]
    assert [json.dumps(damaged_json(Random(seed), value)) for seed in reversed(range(400))] == first[::-1]


def test_files_bring_typed_errors_only(tmp_path):
    tally = Tally()
    fuzz_readers(1, tmp_path, tally, times(150), corpus=Path(__file__).parents[1] / "data")
    assert tally.cases == 150
    assert not tally.findings
    assert {outcome for _, outcome in tally.counts} == {"read", "refused"}


@pytest.fixture
def bad_worker(tmp_path, monkeypatch) -> str:
    (tmp_path / "bad_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "bad_worker"


def test_a_crash_and_a_hang_are_seen(bad_worker):
    with Reader(bad_worker, seconds=2) as reader:
        assert reader.read("gguf", Path("fine"))[0] == "read"
        assert reader.read("gguf", Path("crash")) == ("crash", "ended by SIGABRT")
        assert reader.read("gguf", Path("fine"))[0] == "read"
    with Reader(bad_worker, seconds=0.5) as reader:
        assert reader.read("gguf", Path("hang")) == ("hang", "no answer within 0.5 s")


def test_what_is_found_is_kept_once(bad_worker, tmp_path, monkeypatch, capsys):
    def written(random, folder, corpus):
        (folder / "crash").write_bytes(b"x")
        return "gguf", folder / "crash", False

    monkeypatch.setattr(readers, "write_case", written)
    tally = Tally()
    scratch, keep = tmp_path / "scratch", tmp_path / "keep"
    scratch.mkdir()
    keep.mkdir()
    fuzz_readers(7, scratch, tally, times(2), reader=Reader(bad_worker, seconds=20), keep=keep)
    assert [(finding.what, finding.seed) for finding in tally.findings.values()] == [("crash: ended by SIGABRT", "7/0")]
    assert (keep / "7-0" / "crash").read_bytes() == b"x"
    assert capsys.readouterr().out.count("FOUND") == 1


def test_a_damage_that_is_not_noticed_is_seen(bad_worker, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "write_case", lambda random, folder, corpus: ("manifest", folder / "fine", True))
    tally = Tally()
    fuzz_readers(7, tmp_path, tally, times(1), reader=Reader(bad_worker, seconds=20))
    assert [finding.what for finding in tally.findings.values()] == ["missed: the damage was not noticed"]


def test_an_untyped_error_is_a_bug(tmp_path, monkeypatch):
    def fails(path):
        raise KeyError("x")

    monkeypatch.setitem(reader_worker.READERS, "gguf", fails)
    assert answer("gguf", tmp_path) == {"outcome": "bug", "detail": "KeyError in reader_worker.py:answer: 'x'"}


async def test_requests_are_answered_without_a_500(folder):
    tally = Tally()
    await fuzz_bodies(1, str(folder), tally, times(80))
    assert tally.cases == 80
    assert not tally.findings
    assert tally.counts["body", "answered"]
    assert tally.counts["body", "refused"]


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (400, "application/json", b'{"detail": "no"}'),
        (500, "application/json", b'{"error": {"message": "m", "type": "t", "param": null, "code": "internal_error"}}'),
        (200, "text/event-stream", b'data: {"choices": []}\n\n'),
    ],
)
def test_wrong_answers_are_seen(status, kind, body):
    with pytest.raises(WrongAnswerError):
        _judge(status, kind, body)


def test_the_command(tmp_path):
    command = [sys.executable, "bench/fuzz.py", "--only", "readers", "--cases", "5", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed 3\n")
    assert "5 cases in" in done.stdout
