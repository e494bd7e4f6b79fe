"""A model hub on the loopback interface that gives each connection so many bytes a second, as a far one would."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPOSITORY = "bench/model"
COMMIT = "0" * 40
_PIECE = 256 << 10
_BURST_SECONDS = 0.02  # that a connection may be ahead of its rate


class Pace:
    """Says how long to wait so that no more than ``rate`` bytes a second are sent. For one connection."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._due = clock()

    def sent(self, size: int) -> float:
        """Seconds to wait after ``size`` more bytes. Time that was not used is lost."""
        now = self._clock()
        self._due = max(self._due, now - _BURST_SECONDS) + size / self._rate
        return max(0.0, self._due - now)


@contextmanager
def capped_hub(files: Sequence[Path], rate: float) -> Iterator[str]:
    """Serves ``files`` as the repository ``REPOSITORY``; yields the hub's address. ``rate`` is in bytes a second."""
    found = {file.name: file for file in files}
    listing = json.dumps({"sha": COMMIT, "siblings": [_listed(file) for file in files]}).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            self.pace = Pace(rate)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == f"/api/models/{REPOSITORY}/revision/main":
                self._start(200, {"Content-Length": str(len(listing)), "Content-Type": "application/json"})
                self.wfile.write(listing)
                return
            file = found.get(path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/"))
            if file is None:
                self._start(404, {"Content-Length": "0"})
            else:
                self._send(file)

        def _send(self, file: Path) -> None:
            size = file.stat().st_size
            start, end, status = 0, size, 200
            headers = {"ETag": f'"{file.name}-{size}"', "Accept-Ranges": "bytes"}
            if asked := self.headers.get("Range"):
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, end, status = int(first), int(last) + 1 if last else size, 206
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            self._start(status, headers | {"Content-Length": str(end - start)})
            with file.open("rb") as source:
                source.seek(start)
                while start < end and (piece := source.read(min(_PIECE, end - start))):
                    self.wfile.write(piece)
                    start += len(piece)
                    time.sleep(self.pace.sent(len(piece)))

        def _start(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # a client that has what it wanted
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            """Says nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _listed(file: Path) -> dict[str, Any]:
    with file.open("rb") as data:
        sha256 = hashlib.file_digest(data, "sha256").hexdigest()
    size = file.stat().st_size
    return {"rfilename": file.name, "size": size, "lfs": {"sha256": sha256, "size": size}}
