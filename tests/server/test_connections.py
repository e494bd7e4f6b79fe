"""How many connections there may be, and what becomes of those that are too many."""

import resource
import socket
import time

import pytest

from trimaran.server.descriptors import OTHERS, room_for
from trimaran.server.http import HttpProtocol
from trimaran.server.options import ServeOptions

from .running import Running, running


def connect(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def ask(raw: socket.socket, path: str) -> bytes:
    """The whole answer, which may come in pieces."""
    raw.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    answer = raw.recv(65536)
    while b"\r\n\r\n" not in answer:
        answer += raw.recv(65536)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += raw.recv(65536)
    return head + b"\r\n\r\n" + body


def test_too_many_get_503_but_probes_are_answered(byte_model, monkeypatch):
    monkeypatch.setattr("trimaran.server.http.RESERVE", 2)
    with running(byte_model, max_connections=3) as server:
        server.http.close()
        time.sleep(0.2)  # until the server has seen it
        idle = [connect(server) for _ in range(3)]
        for raw in idle:
            assert ask(raw, "/v1/models").startswith(b"HTTP/1.1 200")
        late = connect(server)
        assert ask(late, "/health").startswith(b"HTTP/1.1 200")
        refused = ask(late, "/v1/models")
        assert refused.startswith(b"HTTP/1.1 503")
        assert b'"code":"connections"' in refused
        assert late.recv(1) == b"", "it is closed"
        more = [connect(server) for _ in range(2)]
        for raw in more:
            assert ask(raw, "/health").startswith(b"HTTP/1.1 200")
        last = connect(server)
        assert last.recv(65536).startswith(b"HTTP/1.1 503")
        assert b"connections" in ask(more[0], "/metrics")
        idle[0].close()
        for raw in [last, late, *more]:
            raw.close()
        time.sleep(0.2)
        with connect(server) as raw:
            assert ask(raw, "/v1/models").startswith(b"HTTP/1.1 200")
        for raw in idle:
            raw.close()


def test_many_tiny_headers_are_a_large_head(byte_model):
    with running(byte_model) as server, connect(server) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"a:\r\n" * 5000 + b"\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.1 400")


@pytest.fixture
def limits():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0], before[1]))


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be(limits, monkeypatch, caplog):
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    assert room_for(100) == 100
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256
    assert room_for(400) == 400
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 400 + OTHERS
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 500))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert room_for(1000) == 500 - OTHERS
    assert "--max-connections 1000" in caplog.text


def test_the_default_has_room_for_all_that_may_run_and_wait():
    options = ServeOptions()
    assert options.max_connections >= options.max_num_seqs + options.max_waiting
    assert HttpProtocol.max_connections == options.max_connections
