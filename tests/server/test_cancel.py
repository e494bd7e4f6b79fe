"""A client that leaves: its sequences end and its pages come back, streaming or not."""

import json
import re
import socket
import threading
from collections.abc import Iterator

import httpx
import openai
import pytest

from trimaran.kernels.null import NullModel
from trimaran.server.http import BodyWriter

from .byte_model import VOCAB
from .running import NAME, Running, eventually, running

HELLO = [{"role": "user", "content": "Hello!"}]
LONG = {"model": NAME, "messages": HELLO, "max_tokens": 1500, "ignore_eos": True, "n": 3}


@pytest.fixture(scope="module")
def server(byte_model) -> Iterator[Running]:
    with running(byte_model, null=NullModel(vocab=VOCAB, context=2048, step_seconds=0.005)) as server:
        yield server


def assert_cancelled(server: Running, cancelled: float) -> None:
    eventually(lambda: server.metric("trimaran_requests_cancelled_total") == cancelled + 1)
    eventually(lambda: server.metric("trimaran_sequences_running") == 0)
    eventually(lambda: server.pages() == server.metric("trimaran_pages"))


def test_leaving_a_stream(server, client):
    cancelled = server.metric("trimaran_requests_cancelled_total")
    more = {"ignore_eos": True}
    stream = client.chat.completions.create(
        model=NAME, messages=HELLO, n=3, max_tokens=1500, stream=True, extra_body=more
    )
    next(iter(stream))
    eventually(lambda: server.metric("trimaran_sequences_running") == 3)
    assert server.pages() < server.metric("trimaran_pages")
    stream.close()
    assert_cancelled(server, cancelled)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_anything_was_said(server, stream):
    cancelled = server.metric("trimaran_requests_cancelled_total")
    with httpx.Client(base_url=server.url, timeout=0.3) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post("/v1/chat/completions", json=LONG) if not stream else read_all(impatient)
    assert_cancelled(server, cancelled)


def read_all(impatient: httpx.Client) -> None:
    """Leaves in the middle of a stream by no longer reading it."""
    with impatient.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as response:
        for _ in response.iter_lines():
            raise httpx.ReadTimeout("enough")


def test_a_stop_string_ends_the_sequence_in_the_engine(server, client):
    generated = server.metric("trimaran_generated_tokens_total")
    answer = client.completions.create(
        model=NAME, prompt="x", max_tokens=1500, stop=list("abcdefghijklmnop"), extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "stop"
    eventually(lambda: server.metric("trimaran_sequences_running") == 0)
    eventually(lambda: server.metric("trimaran_generated_tokens_total") > generated)
    assert server.metric("trimaran_generated_tokens_total") - generated < 1500


def test_neighbours_go_on(server, client):
    """Others are not disturbed by one that leaves, and say what they say alone."""

    def ask():
        return client.completions.create(model=NAME, prompt="neighbour", max_tokens=60, temperature=0)

    alone = ask().choices[0].text
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(ask().choices[0].text)) for _ in range(4)]
    for thread in threads:
        thread.start()
    stream = client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=1500, stream=True)
    next(iter(stream))
    stream.close()
    for thread in threads:
        thread.join()
    assert texts == [alone] * 4


def test_a_request_after_a_deadline_is_an_error(byte_model):
    slow = NullModel(vocab=VOCAB, context=2048, step_seconds=0.02)
    with running(byte_model, null=slow, timeout_request=0.5) as server:
        response = server.http.post("/v1/chat/completions", json=LONG)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "deadline_exceeded"
        with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
            stream = client.completions.create(model=NAME, prompt="x", max_tokens=1500, stream=True)
            with pytest.raises(openai.APIError) as caught:
                list(stream)
            assert caught.value.code == "deadline_exceeded"
        eventually(lambda: server.pages() == server.metric("trimaran_pages"))


def test_a_slow_reader_gets_everything(byte_model, monkeypatch):
    """What a client's buffers do not hold waits for it, and comes in order."""
    body = {**LONG, "seed": 5, "stream": True, "n": 8}
    behind = []
    paused = BodyWriter.paused.fget
    monkeypatch.setattr(BodyWriter, "paused", property(lambda self: behind.append(paused(self)) or behind[-1]))
    with running(byte_model, null=NullModel(vocab=VOCAB, context=2048)) as server:
        said = []
        for reads_late in (False, True):
            address = httpx.URL(server.url)
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect((address.host, address.port))
                data = json.dumps(body).encode()
                head = f"host: x\r\ncontent-length: {len(data)}\r\nconnection: close\r\n"
                head += "content-type: application/json\r\n\r\n"
                connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode() + data)
                behind.clear()
                if reads_late:
                    eventually(lambda: any(behind))
                received = b"".join(iter(lambda: connection.recv(65536), b""))
            events = re.findall(rb"^data: (\{.*\})\r?$", received, re.MULTILINE)
            choices = [json.loads(event)["choices"][0] for event in events]
            said.append(
                ["".join(c["delta"].get("content") or "" for c in choices if c["index"] == at) for at in range(8)]
            )
            assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert sum(choice["finish_reason"] == "length" for choice in choices) == 8
    assert said[0] == said[1]
