"""A web server on the loopback interface whose every answer a test decides."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Page:
    """What lies at a path.

    ``failures`` are statuses to answer first; ``cuts`` end the connection after so many body bytes, once each, with the
    full Content-Length promised; ``redirect`` sends elsewhere; ``headers`` are sent in place of the right ones.
    """

    body: bytes = b""
    content_type: str = "application/octet-stream"
    etag: str | None = None
    ranges: bool = True
    slow: bool = False  # send in small parts with pauses, so that connections are busy at the same time
    next_version: "Page | None" = None  # takes this page's place after its first answer
    failures: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    redirect: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    length: bool = True  # say Content-Length


def json_page(value: Any, content_type: str = "application/json") -> Page:
    return Page(json.dumps(value).encode(), content_type)


@dataclass
class Request:
    path: str
    headers: dict[str, str]  # names in lower case


class FakeWeb:
    """Pages by path (with query), and the requests that came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pages: dict[str, Page] = {}
        self.requests: list[Request] = []

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def ranges(self, path: str) -> list[str | None]:
        """The Range header of every request for ``path``."""
        return [request.headers.get("range") for request in self.asked(path)]


@contextmanager
def serve() -> Iterator[FakeWeb]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            web.requests.append(Request(self.path, {k.lower(): v for k, v in self.headers.items()}))
            page = web.pages.get(self.path)
            self.close_connection = True
            if page is None:
                self._send(404, {}, b"")
            elif page.failures:
                self._send(page.failures.pop(0), page.headers, b"")
            elif page.redirect:
                self._send(302, {"Location": page.redirect}, b"")
            else:
                self._send_page(page)

        def _send_page(self, page: Page) -> None:
            headers = {"Content-Type": page.content_type} | ({"ETag": page.etag} if page.etag else {})
            asked, validator = self.headers.get("Range"), self.headers.get("If-Range")
            start, end = 0, len(page.body)
            status = 200
            if asked and page.ranges and validator in (None, page.etag):
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, end = int(first), min(len(page.body), int(last) + 1) if last else len(page.body)
                if start >= len(page.body):
                    self._send(416, {"Content-Range": f"bytes */{len(page.body)}"}, b"")
                    return
                status = 206
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(page.body)}"
            if page.next_version is not None:
                web.pages[self.path] = page.next_version
            body = page.body[start:end]
            cut = page.cuts.pop(0) if page.cuts else None
            self._send(status, headers | page.headers, body, cut=cut, length=page.length, slow=page.slow)

        def _send(
            self,
            status: int,
            headers: dict[str, str],
            body: bytes,
            *,
            cut: int | None = None,
            length: bool = True,
            slow: bool = False,
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            if length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            sent = body if cut is None else body[:cut]
            part = 10_000 if slow else len(sent) or 1
            for at in range(0, len(sent), part):
                self.wfile.write(sent[at : at + part])
                if slow:
                    time.sleep(0.005)

        def log_message(self, *args: Any) -> None:
            """Says nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web = FakeWeb(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
