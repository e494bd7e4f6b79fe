"""Parts of ``/v1/files`` and ``/v1/batches`` on their own: turns, lines, forms that arrive in pieces, who is asked."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trimaran.base.errors import RequestError
from trimaran.server.batches import asking, lines
from trimaran.server.batches.asking import Asking
from trimaran.server.batches.file_store import FileLimits
from trimaran.server.batches.gate import Gate
from trimaran.server.batches.lines import Rules, check
from trimaran.server.batches.runner import Runner
from trimaran.server.batches.storage import Storage
from trimaran.server.batches.upload import receive_form
from trimaran.server.errors import CODE, BodyTooLargeError, StorageError
from trimaran.server.guards import LATER, TENANT
from trimaran.server.metrics import Metrics
from trimaran.server.tenants import Key, Tenant, TenantLimits, Tenants

RULES = Rules("/v1/completions", ("model",), 1000)
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "model"}}


async def entered(gate: Gate, tasks: list[asyncio.Task[None]]) -> int:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return sum(task.done() and not task.cancelled() for task in tasks)


async def test_the_gate_lets_in_fewer_while_others_run_but_always_one() -> None:
    others = 0
    gate = Gate(4, lambda: others)
    tasks = [asyncio.create_task(gate.enter()) for _ in range(8)]
    assert await entered(gate, tasks) == 4
    others = 2
    for let_in in (4, 4, 5):  # from now on there is room for two
        gate.leave()
        assert await entered(gate, tasks) == let_in
    others = 99
    gate.leave()
    assert (await entered(gate, tasks), gate.inside) == (5, 1)
    for let_in in (6, 7, 8):
        gate.leave()
        assert (await entered(gate, tasks), gate.inside) == (let_in, 1)


async def test_who_is_cancelled_takes_no_place() -> None:
    gate = Gate(1, lambda: 0)
    await gate.enter()
    first, second, third = (asyncio.create_task(gate.enter()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    gate.leave()  # before the first has noticed
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.sleep(0)
    assert second.done()
    gate.leave()
    third.cancel()  # when it has been let in and does not know
    await asyncio.gather(third, return_exceptions=True)
    assert gate.inside == 0


def write(path: Path, *content: Any) -> Path:
    path.write_bytes(b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in content))
    return path


def test_a_file_has_a_limit_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_LINES", 3)
    many = [{**LINE, "custom_id": str(number)} for number in range(4)]
    assert check(write(tmp_path / "a", *many[:3]), RULES) == (3, [])
    _, [finding] = check(write(tmp_path / "b", *many), RULES)
    assert finding.code == "too_many_requests"


def test_a_body_is_as_long_as_that_of_a_request_at_most(tmp_path: Path) -> None:
    _, [finding] = check(write(tmp_path / "a", {**LINE, "body": {"model": "model", "x": "y" * 1000}}), RULES)
    assert (finding.code, finding.line) == ("body_too_large", 1)


@pytest.mark.parametrize("name", ["custom_id", "method", "url", "body"])
def test_a_field_that_a_line_has_twice_is_found(tmp_path: Path, name: str) -> None:
    text = json.dumps(LINE)[:-1] + f', "{name}": {json.dumps(LINE[name])}}}'
    _, [finding] = check(write(tmp_path / "a", text.encode()), RULES)
    assert (finding.code, finding.param, finding.line) == ("invalid_json_line", name, 1)


def test_a_body_may_have_fields_of_the_same_names(tmp_path: Path) -> None:
    body = {"model": "model", "url": 1, "body": {"method": "x"}}
    assert check(write(tmp_path / "a", {**LINE, "body": body}), RULES) == (1, [])


@given(st.binary(max_size=200) | st.builds(lambda value: json.dumps(value).encode(), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from([*LINE, "model", "stream", "x"]), inner, max_size=5),
    max_leaves=12,
)))  # fmt: skip
def test_any_line_is_a_request_or_told_why_not(text: bytes) -> None:
    try:
        line = lines.parse(text, RULES)
    except lines.BadLineError:
        return
    assert line.url == RULES.endpoint


def form(content: bytes) -> bytes:
    head = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a \xc3\xa9.jsonl"\r\n\r\n'
    return head + content + b'\r\n--xyz\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--xyz--\r\n'


async def received(pieces: list[bytes], path: Path, most: int = 10_000) -> tuple[str | None, dict[str, str]]:
    left = list(pieces)

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    made = await receive_form("multipart/form-data; boundary=xyz", receive, path, most, 5)
    return made.name, made.fields


@given(
    content=st.lists(st.sampled_from([b"\r", b"\n", b"-", b"--xyz", b"\r\n--xy", b"a", b"\0"]), max_size=30),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_a_form_is_the_same_however_it_is_cut(tmp_path_factory: Any, content: list[bytes], cuts: list[int]) -> None:
    body = b"".join(content)
    assume(b"\r\n--xyz" not in b"\r\n" + body)
    sent = form(body)
    places = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    path = tmp_path_factory.mktemp("form") / "file"
    pieces = [sent[begin:end] for begin, end in pairwise(places)]
    assert asyncio.run(received(pieces, path)) == ("a é.jsonl", {"purpose": "batch"})
    assert path.read_bytes() == body


@given(st.binary(max_size=300), st.integers(0, 200))
def test_a_damaged_form_is_refused_or_read(tmp_path_factory: Any, noise: bytes, at: int) -> None:
    sent = form(b"content")
    path = tmp_path_factory.mktemp("form") / "file"
    try:
        name, _ = asyncio.run(received([sent[:at] + noise + sent[at:]], path))
    except (RequestError, BodyTooLargeError):
        return
    assert name is not None


class Plane:
    """What ``Asking`` looks at."""

    running = 0

    def __init__(self) -> None:
        self.metrics = Metrics()

    def trouble(self) -> str | None:
        return None


async def answering(statuses: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The status that ``Asking`` comes back with when the app answers with these, and how often it asked."""
    monkeypatch.setattr(asking, "PAUSE_SECONDS", 0.0)
    asked = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        assert scope[LATER]
        assert scope[TENANT].name == "me"
        assert (await receive())["body"] == b"{}"
        status, code = statuses[asked]
        asked += 1
        scope[CODE] = code
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    plane: Any = Plane()
    said = await Asking(app, plane, 1).ask("/v1/completions", b"{}", Tenant("me", TenantLimits()))
    return said.status, asked


async def test_what_is_not_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    died, full, stopping = (503, "engine_unavailable"), (429, "queue_full"), (503, "stopping")
    assert await answering([full, stopping, full, died, (200, "")], monkeypatch) == (200, 5)
    assert await answering([died, full, died, died], monkeypatch) == (503, 4)
    for last in ((400, "invalid_value"), (500, "not_finite"), (504, "deadline_exceeded")):
        assert await answering([last], monkeypatch) == (last[0], 1)


async def test_a_bug_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("a secret")

    plane: Any = Plane()
    said = await Asking(app, plane, 1).ask("/v1/completions", b"{}", Tenant("me", TenantLimits()))
    assert (said.status, said.code) == (500, "internal_error")
    assert b"secret" not in said.body


def test_what_a_tenant_does_not_wait_for_is_counted_apart() -> None:
    limits = TenantLimits(requests_per_minute=1, concurrency=1)
    tenants = Tenants([Key(bytes(32), "alice", limits)], TenantLimits(), own_caches=True)
    twin = tenants.apart("alice")
    assert twin is not None
    assert (twin.name, len(twin.salt)) == ("alice", 32)
    twin.enter()
    assert tenants.apart("alice") is twin
    assert tenants.apart("bob") is None
    assert Tenants([], limits, own_caches=False).apart("anybody") is not None


async def test_a_folder_that_is_there_is_taken_when_a_server_begins(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("there is no line")

    async def begun() -> Runner:
        plane: Any = Plane()
        storage = Storage(tmp_path / "files", FileLimits(100, 1000, 60))
        tenants = Tenants((), TenantLimits(), own_caches=False)
        runner = Runner(storage, plane, tenants, ("model",), concurrency=1, body_bytes=1000)
        runner.begin(app)
        return runner

    other = Storage(tmp_path / "files", FileLimits(100, 1000, 60))
    first = await begun()
    await other.open()  # nobody has used it
    await first.close()
    other.close()
    second = await begun()
    async with asyncio.timeout(10):
        while not (tmp_path / "files" / "state.sqlite-wal").exists():  # noqa: ASYNC110  # which its database is open with
            await asyncio.sleep(0.01)
    with pytest.raises(StorageError, match="another server keeps its files"):
        await Storage(tmp_path / "files", FileLimits(100, 1000, 60)).open()
    await second.close()
