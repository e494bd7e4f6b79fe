import json

import httpx
import pytest

from trimaran.bench.client import UnexpectedAnswerError, send
from trimaran.bench.mix import CHAT, COMPLETIONS, Request


def client(status: int, body: bytes) -> httpx.AsyncClient:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def stream(*events: dict, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def piece(index: int, text: str) -> dict:
    return {"choices": [{"index": index, "delta": {"content": text}}]}


async def test_texts_of_a_whole_answer_come_by_choice():
    body = json.dumps({"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}).encode()
    assert await send(client(200, body), Request(COMPLETIONS, {})) == ["a", "b"]


async def test_texts_of_a_stream_are_joined_by_choice():
    body = stream(piece(0, "a"), piece(1, "x"), piece(0, "b"), {"choices": []})
    assert await send(client(200, body), Request(CHAT, {"stream": True})) == ["ab", "x"]


async def test_hanging_up_brings_nothing_and_is_no_error():
    body = stream(piece(0, "a"), piece(0, "b"), done=False)
    assert await send(client(200, body), Request(CHAT, {"stream": True}, cancel_events=1)) == []


async def test_a_refusal_that_was_asked_for_is_no_error():
    assert await send(client(400, b"no"), Request(CHAT, {}, status=400)) == []


@pytest.mark.parametrize(
    ("status", "body", "request_body", "words"),
    [
        (500, b"broken", {}, "500 instead of 200: broken"),
        (503, b"busy", {"stream": True}, "503 instead of 200: busy"),
        (200, stream({"error": {"message": "lost"}}), {"stream": True}, "error event"),
        (200, stream(piece(0, "a"), done=False), {"stream": True}, "without .DONE."),
    ],
)
async def test_what_was_not_asked_for_is_an_error(status, body, request_body, words):
    with pytest.raises(UnexpectedAnswerError, match=words):
        await send(client(status, body), Request(CHAT, request_body))


async def test_an_answer_where_a_refusal_belongs_is_an_error():
    with pytest.raises(UnexpectedAnswerError, match="200 instead of 400"):
        await send(client(200, b"{}"), Request(CHAT, {}, status=400))
