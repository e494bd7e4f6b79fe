import hashlib
from collections import namedtuple
from pathlib import Path

import httpx
import pytest

from trimaran.base.errors import SourceError
from trimaran.checkpoint import disk_space, patience
from trimaran.checkpoint import fetch as module
from trimaran.checkpoint.download import Remote, download

from .fake_web import FakeWeb, Page
from .folders import left

BODY = bytes(range(256)) * 1000
SHA = hashlib.sha256(BODY).hexdigest()


def test_a_plain_download(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY)
    record = download(client, Remote(f"{web.url}/f", SHA, len(BODY)), target)
    assert (record.name, record.sha256, record.size) == ("file", SHA, len(BODY))
    assert target.read_bytes() == BODY
    assert left(target) == ["file"]
    assert web.requests[0].headers["accept-encoding"] == "identity"
    assert web.requests[0].headers["user-agent"].startswith("trimaran/")


def test_an_empty_file(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(b"")
    assert download(client, Remote(f"{web.url}/f", size=0), target).size == 0
    assert target.read_bytes() == b""


def test_a_cut_connection_is_resumed_under_the_same_etag(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"', cuts=[1000, 500])
    download(client, Remote(f"{web.url}/f"), target)
    assert target.read_bytes() == BODY
    assert web.ranges("/f") == [None, "bytes=1000-", "bytes=1500-"]
    assert web.requests[1].headers["if-range"] == '"v1"'


def test_a_known_hash_is_enough_to_resume(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, cuts=[1000])
    download(client, Remote(f"{web.url}/f", SHA), target)
    assert web.ranges("/f") == [None, "bytes=1000-"]
    assert "if-range" not in web.requests[1].headers


def test_without_etag_or_hash_it_starts_over(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, cuts=[1000])
    download(client, Remote(f"{web.url}/f"), target)
    assert target.read_bytes() == BODY
    assert web.ranges("/f") == [None, None]


def test_a_weak_etag_does_not_identify_bytes(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, etag='W/"v1"', cuts=[1000])
    download(client, Remote(f"{web.url}/f"), target)
    assert web.ranges("/f") == [None, None]


def test_a_server_that_ignores_ranges_is_read_from_the_start(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"', ranges=False, cuts=[1000])
    download(client, Remote(f"{web.url}/f", SHA), target)
    assert target.read_bytes() == BODY
    assert web.ranges("/f") == [None, "bytes=1000-"]


def interrupt(web: FakeWeb, client: httpx.Client, remote: Remote, target: Path, size: int) -> None:
    """Leaves ``size`` bytes of a download behind, as a process that was killed would."""
    page = web.pages["/f"]
    page.cuts = [size]
    page.failures = []
    original = patience.ATTEMPTS
    patience.ATTEMPTS = 1
    try:
        with pytest.raises(SourceError, match="gave up after 1 tries"):
            download(client, remote, target)
    finally:
        patience.ATTEMPTS = original
    assert left(target) == ["file.part", "file.part.json"]
    web.requests.clear()


def test_a_later_call_goes_on_where_the_first_was_interrupted(
    web: FakeWeb, client: httpx.Client, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"')
    remote = Remote(f"{web.url}/f", SHA)
    interrupt(web, client, remote, target, 100_000)
    download(client, remote, target)
    assert target.read_bytes() == BODY
    assert web.ranges("/f") == ["bytes=100000-"]
    assert "going on from 0.1 MB" in capsys.readouterr().err
    assert left(target) == ["file"]


def test_a_file_that_has_changed_meanwhile_is_read_from_the_start(
    web: FakeWeb, client: httpx.Client, target: Path
) -> None:
    web.pages["/f"] = Page(bytes(len(BODY)), etag='"v1"')
    remote = Remote(f"{web.url}/f")
    interrupt(web, client, remote, target, 1000)
    web.pages["/f"] = Page(BODY, etag='"v2"')
    download(client, remote, target)
    assert target.read_bytes() == BODY


def test_old_bytes_that_turn_out_wrong_are_fetched_again(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(bytes(len(BODY)))
    remote = Remote(f"{web.url}/f", SHA)
    interrupt(web, client, remote, target, 1000)
    web.pages["/f"] = Page(BODY)
    download(client, remote, target)
    assert target.read_bytes() == BODY
    assert web.ranges("/f") == ["bytes=1000-", None]


def test_a_file_that_has_become_shorter_is_read_from_the_start(
    web: FakeWeb, client: httpx.Client, target: Path
) -> None:
    web.pages["/f"] = Page(bytes(2 * len(BODY)))
    remote = Remote(f"{web.url}/f", SHA)
    interrupt(web, client, remote, target, len(BODY) + 1)
    web.pages["/f"] = Page(BODY)
    download(client, remote, target)
    assert target.read_bytes() == BODY


def test_bytes_of_another_address_are_not_used(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(bytes(len(BODY)))
    interrupt(web, client, Remote(f"{web.url}/f"), target, 1000)
    web.pages["/g"] = Page(BODY)
    download(client, Remote(f"{web.url}/g", SHA), target)
    assert web.ranges("/g") == [None]


def test_a_complete_download_that_was_not_yet_renamed_is_not_fetched_again(
    web: FakeWeb, client: httpx.Client, target: Path
) -> None:
    web.pages["/f"] = Page(BODY)
    remote = Remote(f"{web.url}/f", SHA, len(BODY))
    interrupt(web, client, remote, target, 1000)
    target.with_name("file.part").write_bytes(BODY)
    download(client, remote, target)
    assert web.requests == []
    assert target.read_bytes() == BODY


def test_a_file_that_is_there_with_the_right_hash_is_taken(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    target.write_bytes(BODY)
    assert download(client, Remote(f"{web.url}/f", SHA), target).size == len(BODY)
    assert web.requests == []


def test_a_wrong_hash_names_both_and_leaves_nothing(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY)
    expected = "0" * 64
    with pytest.raises(SourceError, match=f"SHA-256 {SHA}, expected {expected}"):
        download(client, Remote(f"{web.url}/f", expected), target)
    assert left(target) == []
    assert len(web.requests) == 1


def test_a_wrong_size_is_noticed_before_the_bytes_come(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY)
    with pytest.raises(SourceError, match="has 256000 bytes, expected 5"):
        download(client, Remote(f"{web.url}/f", size=5), target)
    assert left(target) == []


def test_a_body_longer_than_expected_is_stopped(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, length=False)
    with pytest.raises(SourceError, match="sends more than its 1000 bytes"):
        download(client, Remote(f"{web.url}/f", size=1000), target)
    assert left(target) == []


@pytest.mark.parametrize(
    ("status", "hint"), [(404, "no such file"), (401, "HF_TOKEN"), (403, "gated model"), (410, "answered 410")]
)
def test_a_final_no_is_not_asked_again(
    web: FakeWeb, client: httpx.Client, target: Path, status: int, hint: str
) -> None:
    web.pages["/f"] = Page(BODY, failures=[status] * 9)
    with pytest.raises(SourceError, match=hint):
        download(client, Remote(f"{web.url}/f"), target)
    assert len(web.requests) == 1


def test_passing_failures_are_tried_again(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, failures=[503, 429, 500, 408])
    download(client, Remote(f"{web.url}/f"), target)
    assert target.read_bytes() == BODY


def test_lasting_failures_end(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, failures=[503] * 99)
    with pytest.raises(SourceError, match=r"gave up after 5 tries: .* answered 503"):
        download(client, Remote(f"{web.url}/f"), target)
    assert len(web.requests) == patience.ATTEMPTS


def test_a_server_that_cuts_every_connection_at_the_same_place_is_given_up(
    web: FakeWeb, client: httpx.Client, target: Path
) -> None:
    web.pages["/f"] = Page(BODY, ranges=False, cuts=[1000] * 99)
    with pytest.raises(SourceError, match="gave up"):
        download(client, Remote(f"{web.url}/f", SHA), target)
    assert len(web.requests) == patience.ATTEMPTS


def test_progress_restores_patience(
    web: FakeWeb, client: httpx.Client, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORTHWHILE", 1000)
    web.pages["/f"] = Page(BODY, cuts=[2000] * 20)
    download(client, Remote(f"{web.url}/f", SHA), target)
    assert target.read_bytes() == BODY
    assert len(web.requests) == 21


def test_retry_after_is_honoured_within_bounds(
    web: FakeWeb, client: httpx.Client, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(patience.time, "sleep", slept.append)
    web.pages["/f"] = Page(BODY, failures=[503, 503], headers={"Retry-After": "7"})
    download(client, Remote(f"{web.url}/f"), target)
    web.pages["/g"] = Page(BODY, failures=[503], headers={"Retry-After": "86400"})
    download(client, Remote(f"{web.url}/g"), target.with_name("g"))
    assert slept == [7.0, 7.0, patience.LONGEST_PAUSE]


def test_a_stalled_connection_is_left(
    web: FakeWeb, client: httpx.Client, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", -1.0)  # every moment is one too many
    monkeypatch.setattr(module, "STALL_BYTES", 1 << 40)
    web.pages["/f"] = Page(BODY)
    with pytest.raises(SourceError, match="bytes came in"):
        download(client, Remote(f"{web.url}/f"), target)


def test_nobody_listening(client: httpx.Client, target: Path, web: FakeWeb) -> None:
    with pytest.raises(SourceError, match="gave up after 5 tries"):
        download(client, Remote("http://127.0.0.1:9/f"), target)


def test_redirects_are_followed_and_do_not_carry_the_login_elsewhere(
    web: FakeWeb, client: httpx.Client, target: Path
) -> None:
    elsewhere = web.url.replace("127.0.0.1", "localhost")
    web.pages["/f"] = Page(redirect=f"{elsewhere}/g?signature=s3cret")
    web.pages["/g?signature=s3cret"] = Page(BODY)
    remote = Remote(f"{web.url}/f", SHA, headers={"Authorization": "Bearer token"})
    download(client, remote, target)
    assert target.read_bytes() == BODY
    assert web.asked("/f")[0].headers["authorization"] == "Bearer token"
    assert "authorization" not in web.asked("/g?signature=s3cret")[0].headers


def test_redirects_without_end(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(redirect=f"{web.url}/f")
    with pytest.raises(SourceError, match="redirects"):
        download(client, Remote(f"{web.url}/f"), target)
    assert len(web.requests) == 11


@pytest.mark.parametrize("elsewhere", ["http://192.0.2.1/f", "ftp://127.0.0.1/f"])
def test_a_redirect_to_an_address_without_tls_is_refused(
    web: FakeWeb, client: httpx.Client, target: Path, elsewhere: str
) -> None:
    web.pages["/f"] = Page(redirect=elsewhere)
    with pytest.raises(SourceError, match=f"refusing {elsewhere}"):
        download(client, Remote(f"{web.url}/f"), target)
    assert len(web.requests) == 1


def test_errors_do_not_show_secrets_of_the_address(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    address = web.url.replace("http://", "http://user:password@")
    with pytest.raises(SourceError) as raised:
        download(client, Remote(f"{address}/f?token=s3cret"), target)
    assert f"{web.url}/f answered 404" in str(raised.value)
    assert "password" not in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_compressed_answer_is_not_the_file(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, headers={"Content-Encoding": "gzip"})
    with pytest.raises(SourceError, match="compressed"):
        download(client, Remote(f"{web.url}/f"), target)


@pytest.mark.parametrize("stated", ["bytes 999-255999/256000", "bytes 0-1/2", "nonsense", ""])
def test_a_wrong_range_is_not_glued_on(web: FakeWeb, client: httpx.Client, target: Path, stated: str) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"')
    remote = Remote(f"{web.url}/f")
    interrupt(web, client, remote, target, 1000)
    web.pages["/f"].headers = {"Content-Range": stated}
    download(client, remote, target)
    assert target.read_bytes() == BODY
    assert web.ranges("/f") == ["bytes=1000-", None]


def test_a_body_without_a_length_must_have_the_known_size(web: FakeWeb, client: httpx.Client, target: Path) -> None:
    web.pages["/f"] = Page(BODY, etag='"v1"', length=False, cuts=[1000])
    download(client, Remote(f"{web.url}/f", size=len(BODY)), target)
    assert target.read_bytes() == BODY
    assert web.ranges("/f") == [None, "bytes=1000-"]


def test_a_disk_that_is_too_small(
    web: FakeWeb, client: httpx.Client, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(
        disk_space.shutil, "disk_usage", lambda path: usage(10**12, 10**12, disk_space.DISK_RESERVE + 1000)
    )
    web.pages["/f"] = Page(BODY)
    with pytest.raises(SourceError, match=r"room for 0\.0 MB, but 0\.3 MB are needed; .* TRIMARAN_HOME"):
        download(client, Remote(f"{web.url}/f"), target)


def test_without_a_terminal_there_is_a_line_at_the_start_and_one_at_the_end(
    web: FakeWeb, client: httpx.Client, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web.pages["/f"] = Page(BODY)
    download(client, Remote(f"{web.url}/f"), target)
    printed = capsys.readouterr()
    assert printed.out == ""
    first, last = printed.err.splitlines()
    assert first == "Downloading file (0.3 MB)"
    assert last.startswith("Downloaded file: 0.3 MB in ")
