"""Downloads by several connections: who brings what, and that bytes of two versions are never put together."""

import _thread
import contextlib
import hashlib
import itertools
import threading
import time
from pathlib import Path

import httpx
import pytest

from trimaran.base.errors import SourceError
from trimaran.checkpoint import fetch, partial_file, patience, pieces
from trimaran.checkpoint.download import Remote, download, download_all

from .fake_web import FakeWeb, Page
from .folders import left

BODY = bytes(i * 7 % 251 for i in range(256_000))
SHA = hashlib.sha256(BODY).hexdigest()
OTHER = bytes(255 - byte for byte in BODY)
PIECE = 40_000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST_PIECE", PIECE)
    monkeypatch.setattr(pieces, "PIECES", 1000)


def asked(web: FakeWeb, path: str = "/f") -> set[int]:
    """First bytes of the ranges that were asked for."""
    return {int(text[6:].split("-")[0]) for text in web.ranges(path) if text}


def test_a_large_file_comes_in_pieces(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"', slow=True)
    record = download(client, Remote(f"{web.url}/f", SHA, len(BODY)), target, 4)
    assert (record.sha256, record.size) == (SHA, len(BODY))
    assert target.read_bytes() == BODY
    assert asked(web) <= set(range(PIECE, len(BODY), PIECE))
    assert asked(web)
    assert all(request.headers["if-range"] == '"v1"' for request in web.requests if "range" in request.headers)
    assert left(target) == ["file"]


def test_one_connection_is_one_plain_request(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"')
    download(client, Remote(f"{web.url}/f", SHA), target, 1)
    assert target.read_bytes() == BODY
    assert web.ranges("/f") == [None]


def test_nothing_that_tells_versions_apart_is_one_connection(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY)
    download(client, Remote(f"{web.url}/f"), target, 4)
    assert target.read_bytes() == BODY
    assert web.ranges("/f") == [None]


def test_a_server_without_ranges_is_read_by_one_connection(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"', ranges=False)
    download(client, Remote(f"{web.url}/f", SHA), target, 4)
    assert target.read_bytes() == BODY


@pytest.mark.parametrize("sha256", [SHA, None])
def test_cut_connections_are_taken_up(web: FakeWeb, client: httpx.Client, target: Path, sha256: str | None) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"', cuts=[1000, 2000, 3000, 0, 500])
    download(client, Remote(f"{web.url}/f", sha256), target, 4)
    assert target.read_bytes() == BODY


def test_a_file_that_changes_between_ranges_is_never_mixed(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(OTHER, etag='"v1"', slow=True, next_version=Page(BODY, etag='"v2"'))
    download(client, Remote(f"{web.url}/f"), target, 4)
    assert target.read_bytes() == BODY


def test_nor_with_a_server_that_ignores_if_range(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    """It answers 206 whatever the version asked for was: the ETag of the answer tells."""

    class Careless(Page):
        @property  # what If-Range is compared with: equal to all
        def etag(self) -> str:
            return _Any(self.tag)

        @etag.setter
        def etag(self, tag: str) -> None:
            self.tag = tag

    web.pages["/f"] = Careless(OTHER, etag='"v1"', slow=True, next_version=Careless(BODY, etag='"v2"'))
    download(client, Remote(f"{web.url}/f"), target, 4)
    assert target.read_bytes() == BODY


class _Any(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def test_a_mix_that_only_the_hash_can_tell_is_fetched_again_in_order(
    web: FakeWeb, client: httpx.Client, target: Path
) -> None:
    web.pages["/f"] = Page(OTHER, slow=True, next_version=Page(BODY))
    download(client, Remote(f"{web.url}/f", SHA), target, 4)
    assert target.read_bytes() == BODY
    assert web.ranges("/f")[0] is None
    assert web.ranges("/f")[-1] is None


def test_a_wrong_hash_is_still_an_error(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(OTHER, etag='"v1"')
    with pytest.raises(SourceError, match=f"expected {SHA}"):
        download(client, Remote(f"{web.url}/f", SHA), target, 4)
    assert left(target) == []


def test_a_file_that_never_stays_the_same_is_given_up(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    versions = [Page(BODY, etag=f'"v{number}"', slow=True) for number in range(100)]
    for page, following in itertools.pairwise(versions):
        page.next_version = following
    web.pages["/f"] = versions[0]
    with pytest.raises(SourceError, match=r"changes faster|gave up"):
        download(client, Remote(f"{web.url}/f"), target, 4)


def test_a_server_that_takes_few_connections_is_used_by_few(
    web: FakeWeb, client: httpx.Client, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"', slow=True)
    original, one = fetch.Fetch._exchange, threading.Lock()

    def refuse_a_second(self: fetch.Fetch, piece: pieces.Piece) -> None:
        if not one.acquire(blocking=False):
            raise patience.TransientError("too many", pause=0.0)
        try:
            original(self, piece)
        finally:
            one.release()

    monkeypatch.setattr(fetch.Fetch, "_exchange", refuse_a_second)
    download(client, Remote(f"{web.url}/f", SHA), target, 4)
    assert target.read_bytes() == BODY


def interrupted(web: FakeWeb, client: httpx.Client, remote: Remote, target: Path) -> None:
    """A download that loses the connection for good after some pieces."""
    web.pages["/f"].failures = []
    before = fetch.Fetch._exchange
    count = 0

    def fail_later(self: fetch.Fetch, piece: pieces.Piece) -> None:
        nonlocal count
        count += 1
        if piece.start == PIECE:
            raise SourceError("pulled the plug")
        before(self, piece)

    fetch.Fetch._exchange = fail_later  # type: ignore[method-assign]  # restored below
    try:
        with pytest.raises(SourceError, match="pulled the plug"):
            download(client, remote, target, 4)
    finally:
        fetch.Fetch._exchange = before  # type: ignore[method-assign]


def test_what_has_come_out_of_order_is_not_fetched_again(
    web: FakeWeb, client: httpx.Client, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"')
    remote = Remote(f"{web.url}/f", SHA)
    part = partial_file.PartialFile(target, remote.url)
    part.describe('"v1"', len(BODY))
    part.scatter()
    for start in (0, 2 * PIECE, 4 * PIECE):
        assert part.write(start, BODY[start : start + PIECE], part.version)
    part.close()
    download(client, remote, target, 4)
    assert target.read_bytes() == BODY
    assert asked(web) == {PIECE, 3 * PIECE, 5 * PIECE, 6 * PIECE}
    assert "going on from 0.1 MB" in capsys.readouterr().err


def missing(target: Path, total: int) -> list[tuple[int, int]]:
    with contextlib.closing(partial_file.PartialFile(target, "http://a/f")) as part:
        return part.gaps(total)


def test_a_killed_process_leaves_a_note_that_says_no_more_than_there_is(target: Path) -> None:
    note = target.with_name("file.part.json")
    part = partial_file.PartialFile(target, "http://a/f", durable=True)
    part.describe('"v1"', len(BODY))
    part.scatter()
    part.write(PIECE, BODY[PIECE : 2 * PIECE], part.version)
    at_death = note.read_bytes()
    part.close()
    note.write_bytes(at_death)
    assert missing(target, len(BODY)) == [(0, len(BODY))]


def test_a_note_about_more_than_the_file_holds_is_cut(target: Path) -> None:
    with contextlib.closing(partial_file.PartialFile(target, "http://a/f")) as part:
        part.scatter()
        part.write(PIECE, BODY[PIECE : 3 * PIECE], part.version)
    assert missing(target, 3 * PIECE) == [(0, PIECE)]
    with target.with_name("file.part").open("r+b") as file:
        file.truncate(2 * PIECE)
    assert missing(target, 3 * PIECE) == [(0, PIECE), (2 * PIECE, 3 * PIECE)]


def test_an_error_ends_all_connections_and_keeps_what_has_come(
    web: FakeWeb, client: httpx.Client, target: Path
) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"', slow=True)
    remote = Remote(f"{web.url}/f", SHA)
    interrupted(web, client, remote, target)
    assert left(target) == ["file.part", "file.part.json"]
    web.requests.clear()
    download(client, remote, target, 4)
    assert target.read_bytes() == BODY
    assert 0 not in asked(web)


def test_several_files_come_at_once_under_one_limit(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    most = running = 0
    lock = threading.Lock()
    original = fetch.Fetch._exchange

    def counted(self: fetch.Fetch, piece: pieces.Piece) -> None:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        try:
            time.sleep(0.002)
            original(self, piece)
        finally:
            with lock:
                running -= 1

    bodies = {name: bytes([number]) * (100_000 + number) for number, name in enumerate("abcde")}
    for name, body in bodies.items():
        web.pages[f"/{name}"] = Page(body, etag=f'"{name}"')
    files = [(Remote(f"{web.url}/{name}"), target.with_name(name)) for name in bodies]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch.Fetch, "_exchange", counted)
        records = download_all(client, files, 3)
    assert [record.name for record in records] == list(bodies)
    assert {name: target.with_name(name).read_bytes() for name in bodies} == bodies
    assert 1 < most <= 3


def test_one_file_that_is_missing_fails_the_whole(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/a"] = Page(BODY, etag='"a"')
    files = [(Remote(f"{web.url}/{name}"), target.with_name(name)) for name in ("a", "b")]
    with pytest.raises(SourceError, match="/b answered 404"):
        download_all(client, files, 4)
    assert not target.with_name("b").exists()


def test_an_interruption_does_not_wait_for_a_server_that_is_silent(
    web: FakeWeb, client: httpx.Client, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = threading.Event()

    def stuck(self: fetch.Fetch, piece: pieces.Piece) -> None:
        _thread.interrupt_main()
        silent.wait(30)

    monkeypatch.setattr(fetch.Fetch, "_exchange", stuck)
    monkeypatch.setattr("trimaran.checkpoint.download._GRACE", 0.01)
    try:
        with pytest.raises(KeyboardInterrupt):
            download(client, Remote(f"{web.url}/f"), target, 2)
    finally:
        silent.set()
