"""``/v1/files`` through the official client and by hand: what is kept, for whom, how much, and what is refused."""

import sqlite3
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from trimaran.base.errors import ConfigError
from trimaran.server.batches.file_store import MOST_ARRIVING, FileLimits, NewFile, QuotaError
from trimaran.server.batches.storage import Storage
from trimaran.server.errors import StorageError, answer
from trimaran.server.tenants import RateLimitError

from .running import Running, running

LINES = b'{"custom_id": "a"}\n'


def upload(client: openai.OpenAI, content: bytes = LINES, name: str = "input.jsonl", **more: Any) -> Any:
    return client.files.create(file=(name, content), purpose="batch", **more)


def test_a_file_is_kept_as_it_came(client: openai.OpenAI) -> None:
    content = bytes(range(256)) * 9000  # more than is written at a time, with line ends and boundaries of all kinds
    made = upload(client, content, "my input.jsonl")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(content), "my input.jsonl", "batch")
    assert made.id.startswith("file-")
    assert made.expires_at == made.created_at + 30 * 86_400
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).read() == content
    assert client.files.wait_for_processing(made.id).status == "processed"
    gone = client.files.delete(made.id)
    assert (gone.id, gone.deleted) == (made.id, True)
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            ask(made.id)
        assert caught.value.code == "file_not_found"


def test_lists_come_in_pages(client: openai.OpenAI) -> None:
    made = [upload(client, name=f"{number}").id for number in range(5)]
    assert [file.id for file in client.files.list(limit=2)][:5] == made[::-1], "the newest first, over several pages"
    ascending = client.files.list(order="asc", after=made[0], limit=3)
    assert [file.id for file in ascending.data] == made[1:4]
    assert ascending.has_more
    assert client.files.list(purpose="batch_output").data == []
    for query, param in (({"after": "file-none"}, "after"), ({"limit": 0}, "limit"), ({"order": "up"}, "order")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.files.list(**query)
        assert caught.value.param == param
    with pytest.raises(openai.BadRequestError, match="did you mean order"):
        client.files.list(extra_query={"ordre": "asc"})


def test_a_client_may_say_when_a_file_expires(client: openai.OpenAI) -> None:
    made = upload(client, expires_after={"anchor": "created_at", "seconds": 3600})
    assert made.expires_at == made.created_at + 3600
    with pytest.raises(openai.BadRequestError) as caught:
        upload(client, expires_after={"anchor": "created_at", "seconds": 3599})
    assert caught.value.param == "expires_after[seconds]"


BOUNDARY = {"content-type": "multipart/form-data; boundary=x"}


def part(name: str, content: str, more: str = "") -> str:
    return f'--x\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{content}\r\n'


FILE, PURPOSE, END = part("file", "{}", '; filename="f"'), part("purpose", "batch"), "--x--\r\n"
ANCHOR = part("expires_after[anchor]", "created_at")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (FILE + END, "purpose", "missing_required_parameter"),
        (PURPOSE + END, "file", "missing_required_parameter"),
        (FILE + part("purpose", "fine-tune") + END, "purpose", "invalid_value"),
        (FILE + PURPOSE + part("pupose", "batch") + END, "pupose", "unknown_parameter"),
        (FILE + FILE + PURPOSE + END, "file", "invalid_value"),
        (FILE + PURPOSE + PURPOSE + END, "purpose", "invalid_value"),
        (FILE + part("purpose", "b" * 2000) + END, "purpose", "invalid_value"),
        (FILE + PURPOSE + part("expires_after[seconds]", "3600") + END, "expires_after[anchor]", "invalid_value"),
        (FILE + PURPOSE + ANCHOR + END, "expires_after[seconds]", "missing_required_parameter"),
        (FILE + PURPOSE + ANCHOR + part("expires_after[seconds]", "") + END, "expires_after[seconds]", "invalid_value"),
        (FILE + PURPOSE, None, "invalid_form"),
        ("nothing of the kind", None, "invalid_form"),
        ("", None, "invalid_form"),
    ],
)
def test_a_form_that_is_wrong_is_refused_by_name(server: Running, body: str, param: str | None, code: str) -> None:
    answer = server.http.post("/v1/files", content=body.encode(), headers=BOUNDARY)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_what_is_no_form_is_refused(server: Running) -> None:
    for headers in ({"content-type": "application/json"}, {"content-type": "multipart/form-data"}, {}):
        answer = server.http.post("/v1/files", content=b"{}", headers=headers)
        assert answer.json()["error"]["code"] == "invalid_form"


def test_files_are_limited_in_size_and_in_all(byte_model: Path, tmp_path: Path) -> None:
    with (
        running(byte_model, files_dir=str(tmp_path), max_file_bytes=50_000, max_files_bytes=100_000) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client,
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            upload(client, bytes(100_000))
        assert caught.value.status_code == 413
        unannounced = httpx.post(
            server.url + "/v1/files",
            content=iter(
                [b"--x\r\n", b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n', bytes(60_000)]
            ),
            headers=BOUNDARY,
        )
        assert unannounced.status_code == 413
        kept = upload(client, bytes(50_000))
        with pytest.raises(openai.BadRequestError) as refused:
            upload(client, bytes(50_000))
        assert refused.value.code == "file_quota_exceeded"
        client.files.delete(kept.id)
        upload(client, bytes(50_000))
        assert [path.name for path in (tmp_path / "arriving").iterdir()] == []
        assert len(list((tmp_path / "content").iterdir())) == 1
    assert tmp_path.joinpath("state.sqlite").stat().st_mode & 0o077 == 0


def test_a_slow_upload_ends(byte_model: Path) -> None:
    def slow() -> Any:
        yield b"--x\r\n"
        import time

        time.sleep(1)
        yield END.encode()

    with running(byte_model, timeout_body=0.3) as server:
        answer = httpx.post(server.url + "/v1/files", content=slow(), headers=BOUNDARY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "body_timeout")


def test_a_folder_is_one_servers(byte_model: Path, tmp_path: Path) -> None:
    with (
        running(byte_model, files_dir=str(tmp_path)),
        pytest.raises(ConfigError, match="another server"),
        running(byte_model, files_dir=str(tmp_path)),
    ):
        pass
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    with pytest.raises(ConfigError, match="--files-dir"), running(byte_model, files_dir=str(blocked)):
        pass


async def test_a_folder_that_another_server_has_is_told_to_whoever_asks(tmp_path: Path) -> None:
    first, second = (Storage(tmp_path, FileLimits(100, 1000, 60)) for _ in range(2))
    await first.open()
    with pytest.raises(StorageError, match="another server keeps its files") as caught:
        await second.open()
    told = answer(caught.value)
    assert (told.status, told.error.code) == (503, "storage_unavailable")
    first.close()
    await second.open()
    with pytest.raises(StorageError, match="gone"):
        await second.run((tmp_path / "gone").stat)
    second.close()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def storage(tmp_path: Path) -> Any:
    storage = Storage(tmp_path, FileLimits(100, 1000, 60))
    storage.open_now()
    yield storage
    storage.close()


def new(storage: Storage, content: bytes = b"x") -> NewFile:
    path = storage.files.arriving()
    path.write_bytes(content)
    return NewFile(path, "name", "batch", 60)


def test_what_has_expired_is_not_found_and_then_deleted(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(storage.files, "_clock", clock)
    file = storage.files.keep("me", new(storage))
    assert storage.files.get(file.id, "me") == file
    assert storage.files.get(file.id, "you") is None
    clock.now = 1061.0
    assert storage.files.get(file.id, "me") is None
    assert storage.files.path(file.id).exists()
    storage.files.forget_expired()
    assert not storage.files.path(file.id).exists()


def test_strays_of_a_server_that_was_killed_are_deleted(tmp_path: Path) -> None:
    storage = Storage(tmp_path, FileLimits(100, 1000, 60))
    storage.open_now()
    kept = storage.files.keep("me", new(storage))
    half = new(storage).path
    stray = tmp_path / "content" / "file-stray"
    stray.write_text("")
    storage.close()
    storage = Storage(tmp_path, FileLimits(100, 1000, 60))
    storage.open_now()
    assert not half.exists()
    assert not stray.exists()
    assert storage.files.path(kept.id).exists()
    storage.close()


def test_a_file_that_cannot_be_noted_is_not_kept(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no"):
        storage.files.keep("me", new(storage))
    assert storage.files.list("me", purpose=None, after=None, limit=9, newest_first=True) == ([], False)


def test_room_is_reserved_while_files_arrive(storage: Storage) -> None:
    for _ in range(MOST_ARRIVING):
        storage.files.begin("me", 100)
    with pytest.raises(RateLimitError):
        storage.files.begin("me", 1)
    storage.files.end("me", 100)
    storage.files.begin("me", 300)
    storage.files.end("me", 100)
    with pytest.raises(QuotaError):
        storage.files.begin("me", 300)
    storage.files.begin("you", 1000)


def test_a_transaction_that_fails_leaves_nothing(storage: Storage) -> None:
    def insert(times: int) -> None:
        with storage.files._database as db:
            for _ in range(times):
                db.execute("INSERT INTO answers VALUES (1, 1, 1, 'a')")

    with pytest.raises(sqlite3.IntegrityError):
        insert(2)
    with storage.files._database as db:
        assert db.execute("SELECT COUNT(*) FROM answers").fetchone() == (0,)
