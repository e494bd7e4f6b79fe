"""Who may ask, how much, and how slowly."""

import json
import socket
from collections.abc import Iterator

import httpx
import openai
import pytest

from trimaran.base.errors import ConfigError
from trimaran.kernels.null import NullModel
from trimaran.server.http import HttpProtocol
from trimaran.server.options import ServeOptions

from .byte_model import VOCAB
from .running import NAME, Running, eventually, running

ROUTES = [
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/models"),
    ("GET", f"/v1/models/{NAME}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/nowhere"),
]


@pytest.fixture(scope="module")
def server(byte_model) -> Iterator[Running]:
    with running(
        byte_model, api_key=("first-key", "second-key"), max_body_bytes=10_000, timeout_body=0.5, timeout_keep_alive=1
    ) as server:
        yield server


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer first-ke"},
        {"authorization": "Bearer first-key2"},
        {"authorization": "Basic first-key"},
        {"authorization": "first-key"},
    ],
)
def test_without_a_key(server, method, path, headers):
    response = server.http.request(method, path, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "key2" not in response.text


def test_a_request_without_a_key_counts_for_its_route(server):
    server.http.post("/v1/completions")
    server.http.get("/nowhere")
    lines = server.http.get("/metrics", headers={"authorization": "Bearer first-key"}).text.splitlines()
    refused = [line for line in lines if line.startswith("trimaran_requests_total") and 'status="401"' in line]
    assert {line.split('"')[1] for line in refused} <= {*(path for _, path in ROUTES), "/v1/models/{model}", "other"}
    assert any('endpoint="/v1/completions"' in line for line in refused)
    assert any('endpoint="other"' in line for line in refused)


def test_two_authorization_headers(server):
    headers = [("authorization", "Bearer no"), ("authorization", "Bearer first-key")]
    assert server.http.get("/v1/models", headers=headers).status_code == 401


def test_health_is_open(server):
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_with_a_key(server, key):
    with openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) as client:
        assert client.completions.create(model=NAME, prompt="x", max_tokens=1).usage.completion_tokens == 1
    assert server.http.get("/ready", headers={"authorization": f"bearer {key}"}).status_code == 200


def test_client_sees_an_authentication_error(server):
    with (
        openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


@pytest.mark.parametrize("key", ["", " ", "key\n"])
def test_a_key_that_no_header_or_any_header_matches(key):
    with pytest.raises(ConfigError, match="--api-key"):
        ServeOptions(model="x", api_key=("good", key))


def keyed(server: Running, **more) -> httpx.Response:
    headers = {"authorization": "Bearer first-key", "content-type": "application/json"}
    return server.http.post("/v1/completions", headers=headers, **more)


def test_a_body_that_announces_too_much(server):
    response = keyed(server, content=b"x" * 10_001)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


def test_a_body_that_turns_out_too_large(server):
    def parts():
        for _ in range(11):
            yield b"x" * 1000

    response = keyed(server, content=parts())
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


def test_a_client_that_is_still_sending_sees_why_it_is_refused(server):
    response = keyed(server, content=(b"x" * 2**20 for _ in range(64)))
    assert response.status_code == 413


def exchange(server: Running, *parts: bytes) -> bytes:
    """Sends raw bytes and returns all that comes back until the server closes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        for part in parts:
            raw.sendall(part)
        answer = b""
        while data := raw.recv(65536):
            answer += data
    return answer


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer first-key\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"", b"408", b"head_timeout"),
        (HEAD, b"408", b"head_timeout"),
        (HEAD + b"content-length: 5\r\n\r\n{", b"408", b"body_timeout"),
        (b"NOT HTTP\r\n\r\n", b"400", b"invalid_http"),
        (HEAD + b"x: " + b"y" * 100_000 + b"\r\n\r\n", b"400", b"invalid_http"),
    ],
)
def test_slow_large_and_broken_requests(server, sent, status, code):
    answer = exchange(server, sent)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b'"code":"' + code + b'"' in answer


@pytest.mark.parametrize("begin", [HEAD + b"x: ", HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx: "])
def test_a_header_or_trailer_without_end(byte_model, begin):
    with (
        running(byte_model) as server,
        socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as raw,
    ):
        raw.sendall(begin)
        with pytest.raises(ConnectionError):
            raw.sendall(b"y" * 2**26)


def test_a_client_that_does_not_read_loses_its_place(byte_model, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "stall_seconds", 0.2)
    fields = {"n": 4, "max_tokens": 2000, "ignore_eos": True, "stream": True, "logprobs": True, "top_logprobs": 20}
    body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "x"}], **fields}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
    with running(byte_model) as server, socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        raw.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: server.metric("trimaran_request_seconds_count") == 1)
        assert server.metric("trimaran_requests_cancelled_total") == 1


def test_a_slow_next_request_does_not_disturb_an_answer(byte_model):
    slow = NullModel(vocab=VOCAB, context=2048, step_seconds=0.005)
    with running(byte_model, null=slow, timeout_body=0.1, timeout_keep_alive=1) as server:
        body = b'{"model": "bytes", "prompt": "x", "max_tokens": 100, "stream": true}'
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        answer = exchange(server, head % len(body) + body, b"GET /health HT")
    assert b"data: [DONE]" in answer
    assert answer.partition(b"data: [DONE]")[0].count(b"HTTP/1.1") == 1
    assert b"head_timeout" in answer.partition(b"data: [DONE]")[2]


def test_an_idle_connection_is_closed_in_silence(server):
    answer = exchange(server, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1


def test_no_other_site_by_default(server):
    headers = {"origin": "https://site.example", "authorization": "Bearer first-key"}
    assert "access-control-allow-origin" not in server.http.get("/v1/models", headers=headers).headers


def test_allowed_origins(byte_model):
    with running(byte_model, allowed_origins=("https://site.example",), api_key=("key",)) as server:
        ask = {"origin": "https://site.example", "access-control-request-method": "POST"}
        allowed = server.http.options("/v1/completions", headers=ask)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://site.example"
        refused = server.http.options("/v1/completions", headers={**ask, "origin": "https://other.example"})
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers


def test_more_choices_than_ever_fit(byte_model):
    with running(byte_model, max_num_seqs=2, max_waiting=2) as server:
        response = server.http.post("/v1/completions", json={"model": NAME, "prompt": "x", "n": 5})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "n"


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue(byte_model, stream):
    slow = NullModel(vocab=VOCAB, context=2048, step_seconds=0.005)
    with (
        running(byte_model, null=slow, max_num_seqs=2, max_waiting=2) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client,
    ):
        busy = client.completions.create(
            model=NAME, prompt="x", n=3, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(busy))
        eventually(lambda: server.metric("trimaran_sequences_running") == 2)
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model=NAME, prompt="x", n=2, stream=stream)
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["retry-after"]) >= 1
        busy.close()
        eventually(lambda: server.metric("trimaran_sequences_running") == 0)
        assert len(client.completions.create(model=NAME, prompt="x", n=4, max_tokens=1, stream=False).choices) == 4
