"""What dies under a batch costs it nothing: a server that is killed, one that stops, engines, the disk."""

import sqlite3
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from trimaran.kernels.null import NullModel
from trimaran.server import restarts
from trimaran.server.batches import runner
from trimaran.server.batches.batch_store import BatchStore

from .batching import TEXT, begun, client_of, ended, results, texts, until
from .byte_model import VOCAB
from .running import NAME, eventually, running
from .test_serve_command import serving

SLOW = NullModel(vocab=VOCAB, context=2048, step_seconds=0.005)
COUNT = 500  # lines of a batch whose server is killed


def test_a_server_that_is_killed_goes_on(byte_model: Path, tmp_path: Path) -> None:
    """No line is answered twice, none is lost, and the answers are those that nothing would have disturbed."""
    flags = (
        str(byte_model),
        "--executor",
        "null",
        "--port",
        "0",
        "--files-dir",
        str(tmp_path),
        "--batch-concurrency=2",
    )
    lines = texts(COUNT)
    for one in lines:
        one["body"]["model"] = byte_model.name
    with serving(*flags) as (process, _, url), openai.OpenAI(base_url=url + "/v1", api_key="x") as client:
        made = begun(client, lines)
        until(client, made.id, lambda batch: batch.request_counts.completed >= 20)
        process.kill()
        process.wait(30)
    with sqlite3.connect(tmp_path / "state.sqlite") as db:
        (kept,) = db.execute("SELECT COUNT(*) FROM answers").fetchone()
    db.close()
    assert 20 <= kept < COUNT
    with serving(*flags) as (_, _, url), openai.OpenAI(base_url=url + "/v1", api_key="x") as client:
        batch = ended(client, made.id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", COUNT, 0)
        answers = results(client, batch.output_file_id)
        assert [one["custom_id"] for one in answers] == [one["custom_id"] for one in lines]
        said = client._client.get(url + "/metrics").text
        assert f'trimaran_batch_requests_total{{outcome="completed"}} {COUNT - kept}.0' in said
        for asked, one in list(zip(lines, answers, strict=True))[:: COUNT // 8]:
            alone = httpx.post(url + TEXT, json=asked["body"]).json()
            assert one["response"]["body"]["choices"] == alone["choices"]


def test_a_server_that_stops_does_not_wait_for_lines(
    byte_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lines = texts(4, max_tokens=1500)
    with running(byte_model, null=SLOW, files_dir=str(tmp_path), batch_concurrency=2) as server:
        with client_of(server) as client:
            made = begun(client, lines)
            until(client, made.id, lambda _: server.metric("trimaran_sequences_running") == 2)
        server.stop()
        assert server.join() == 0
    assert "stopping: no request is running" in caplog.messages
    with sqlite3.connect(tmp_path / "state.sqlite") as db:
        assert db.execute("SELECT COUNT(*) FROM answers").fetchone() == (0,)
    db.close()
    with running(byte_model, files_dir=str(tmp_path)) as server, client_of(server) as client:
        batch = ended(client, made.id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 4)


def test_an_engine_that_dies_takes_no_line_with_it(byte_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.1)
    with running(byte_model, null=SLOW) as server, client_of(server) as client:
        made = begun(client, texts(6, max_tokens=400))
        until(client, made.id, lambda _: server.metric("trimaran_sequences_running") >= 3)
        server.engine().kill()
        batch = ended(client, made.id)
        assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", 6, None)
        assert 1 <= server.metric("trimaran_batch_requests_retried_total") <= 6
        asked = texts(6, max_tokens=400)[5]
        alone = server.http.post(TEXT, json=asked["body"]).json()
        assert results(client, batch.output_file_id)[5]["response"]["body"]["choices"] == alone["choices"]


def test_a_line_that_engines_die_of_is_given_up(byte_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.05)
    with running(byte_model, null=SLOW, restart_limit=20) as server, client_of(server) as client:
        made = begun(client, texts(1, max_tokens=2000))
        killed: set[int] = set()
        while client.batches.retrieve(made.id).status != "completed":
            with suppress(psutil.Error, ValueError):  # the one before is still ending, or none has begun
                if server.metric("trimaran_sequences_running") and (engine := server.engine()).pid not in killed:
                    engine.kill()
                    killed.add(engine.pid)
        assert len(killed) == 3
        [error] = results(client, client.batches.retrieve(made.id).error_file_id)
        assert error["response"]["status_code"] == 503
        assert error["response"]["body"]["error"]["code"] == "engine_unavailable"


def test_a_batch_of_another_model_waits_and_can_be_cancelled(byte_model: Path, tmp_path: Path) -> None:
    with running(byte_model, null=SLOW, files_dir=str(tmp_path)) as server, client_of(server) as client:
        made = [begun(client, texts(1, max_tokens=2000)) for _ in range(2)]
        until(client, made[1].id, lambda batch: batch.status == "in_progress")
    with sqlite3.connect(tmp_path / "state.sqlite") as db:
        for number, document in db.execute("SELECT number, document FROM batches").fetchall():
            renamed = document.replace(f'"model":"{NAME}"'.encode(), b'"model":"other"')
            assert renamed != document
            db.execute("UPDATE batches SET document = ? WHERE number = ?", (renamed, number))
    db.close()
    with running(byte_model, files_dir=str(tmp_path)) as server, client_of(server) as client:
        assert ended(client, begun(client, texts(1)).id).status == "completed"
        assert [client.batches.retrieve(one.id).status for one in made] == ["in_progress"] * 2
        client.batches.cancel(made[0].id)
        batch = ended(client, made[0].id)
        assert (batch.status, batch.request_counts.failed) == ("cancelled", 1)


def test_a_window_that_ended_while_nobody_served_expires(byte_model: Path, tmp_path: Path) -> None:
    with running(byte_model, null=SLOW, files_dir=str(tmp_path)) as server, client_of(server) as client:
        made = begun(client, texts(2, max_tokens=2000), completion_window="3s")
        until(client, made.id, lambda batch: batch.status == "in_progress")
    eventually(lambda: made.expires_at <= time.time())
    with running(byte_model, files_dir=str(tmp_path)) as server, client_of(server) as client:
        batch = ended(client, made.id)
        assert (batch.status, batch.request_counts.failed) == ("expired", 2)


def test_a_disk_that_fails_is_tried_again(byte_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "DISK_SECONDS", 0.05)
    failed: Counter[str] = Counter()

    def flaky(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def once_bad(*args: Any, **kwargs: Any) -> Any:
            failed[name] += 1
            if failed[name] < 3:
                raise sqlite3.OperationalError("database or disk is full")
            return real(*args, **kwargs)

        monkeypatch.setattr(kind, name, once_bad)

    for name in ("move", "answered", "end"):
        flaky(BatchStore, name)
    with running(byte_model) as server, client_of(server) as client:
        batch = ended(client, begun(client, texts(5)).id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 5)
        assert len(results(client, batch.output_file_id)) == 5
        assert len(client.files.list().data) == 2, "what was written for nothing is gone"
    assert all(times >= 3 for times in failed.values())


def test_an_input_that_is_gone_fails_the_batch_and_keeps_what_there_is(byte_model: Path, tmp_path: Path) -> None:
    options = {"null": SLOW, "files_dir": str(tmp_path), "batch_concurrency": 1}
    with running(byte_model, **options) as server, client_of(server) as client:
        made = begun(client, texts(1) + texts(3, max_tokens=2000)[1:])
        until(client, made.id, lambda batch: batch.request_counts.completed == 1)
    (tmp_path / "content" / made.input_file_id).unlink()
    with running(byte_model, files_dir=str(tmp_path)) as server, client_of(server) as client:
        batch = ended(client, made.id)
        assert (batch.status, batch.errors.data[0].code) == ("failed", "input_file_unreadable")
        assert [one["custom_id"] for one in results(client, batch.output_file_id)] == ["line 0"]
