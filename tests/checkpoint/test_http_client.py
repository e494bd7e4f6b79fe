import gzip

import httpx
import pytest

from trimaran.base.errors import SourceError
from trimaran.checkpoint import http_client, patience
from trimaran.checkpoint.http_client import get_document, open_client, shown, translated_errors
from trimaran.checkpoint.patience import TransientError

from .fake_web import FakeWeb, Page


def test_a_document_is_decoded_and_keeps_its_type(web: FakeWeb, client: httpx.Client) -> None:
    web.pages["/d"] = Page(gzip.compress(b"{}"), "application/json", headers={"Content-Encoding": "gzip"})
    document = get_document(client, f"{web.url}/d", {"Accept": "application/json"})
    assert document.content == b"{}"
    assert document.headers["Content-Type"] == "application/json"
    assert web.requests[0].headers["accept"] == "application/json"


def test_a_document_that_is_not_what_it_says(web: FakeWeb, client: httpx.Client) -> None:
    web.pages["/d"] = Page(b"plain", headers={"Content-Encoding": "gzip"})
    with pytest.raises(SourceError, match=f"cannot fetch {web.url}/d"):
        get_document(client, f"{web.url}/d", {})


def test_a_document_is_asked_for_again(web: FakeWeb, client: httpx.Client) -> None:
    web.pages["/d"] = Page(b"text", failures=[502, 503], cuts=[1])
    assert get_document(client, f"{web.url}/d", {}).content == b"text"
    assert len(web.requests) == 4
    web.pages["/d"].failures = [500] * 9
    with pytest.raises(SourceError, match=r"gave up after 5 tries: .*/d answered 500"):
        get_document(client, f"{web.url}/d", {})


def test_a_document_has_a_limit(web: FakeWeb, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_DOCUMENT", 1000)
    web.pages["/d"] = Page(gzip.compress(bytes(5000)), headers={"Content-Encoding": "gzip"})
    with pytest.raises(SourceError, match="answered more than 1000 bytes"):
        get_document(client, f"{web.url}/d", {})


def test_an_unknown_authority_is_not_asked_twice() -> None:
    def fail() -> None:
        with translated_errors("https://host/m.gguf"):
            raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")

    with pytest.raises(SourceError, match=r"https://host/m\.gguf: .*name your own authority with SSL_CERT_FILE"):
        fail()


def test_an_error_without_a_text_gets_one() -> None:
    def fail() -> None:
        with translated_errors("https://host/m.gguf"):
            raise httpx.ReadTimeout("")

    with pytest.raises(TransientError, match="ReadTimeout"):
        fail()


def test_every_wait_has_an_end() -> None:
    with open_client() as client:
        assert None not in client.timeout.as_dict().values()
    assert patience.LONGEST_PAUSE < 60


def test_addresses_are_shown_without_secrets() -> None:
    assert shown("https://user:password@host:8443/a/b?token=1#x") == "https://host:8443/a/b"
    assert shown("https://host:port/") == "an address that is not valid"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://192.0.2.1/m", r"refusing http://192\.0\.2\.1/m: without https:// anyone on the way could change"),
        ("http://localhost.example/m", "without https://"),
        ("file:///etc/passwd", "without https://"),
        ("/relative", "without https://"),
        ("https://host:port/", "cannot fetch an address that is not valid"),
    ],
)
def test_what_is_never_asked(client: httpx.Client, url: str, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        get_document(client, url, {})
