import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from trimaran.bench.client import UnexpectedAnswerError
from trimaran.bench.connection import Connections
from trimaran.bench.exchange import Timing, exchange

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"


class Server:
    """Answers each request with the next of ``answers``, in pieces of ``size`` bytes; None closes the connection."""

    def __init__(self, answers: list[bytes | None], size: int) -> None:
        self.answers, self.size = answers, size
        self.connected = 0
        self.requests: list[bytes] = []
        self.tasks: list[asyncio.Task | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        self.tasks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(size))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                for at in range(0, len(answer), self.size):
                    writer.write(answer[at : at + self.size])
                    await asyncio.sleep(0)
                if b"connection: close" in answer:
                    break
        writer.close()


@contextlib.asynccontextmanager
async def connected(*answers: bytes | None, size: int = 1 << 16, most: int = 8) -> AsyncIterator[tuple]:
    fake = Server(list(answers), size)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connections = Connections(httpx.URL(f"http://127.0.0.1:{port}/base"), {"x-key": "k"}, most, 5)
    try:
        yield fake, connections
    finally:
        connections.close()
        await asyncio.gather(*fake.tasks)
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
async def test_the_body_comes_whole_however_it_is_cut(size):
    async with connected(CHUNKED, size=size) as (fake, connections):
        answer = await connections.post("/v1/x", b"{}")
        assert (answer.status, answer.text) == (200, "hello!")
        times = [at for at, _ in answer.received]
        assert times == sorted(times)
    [request] = fake.requests
    assert request.startswith(b"POST /base/v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nx-key: k\r\n" in request
    assert request.endswith(b"\r\n\r\n{}")


async def test_connections_are_used_again_and_no_more_are_made_than_allowed():
    async with connected(*[CHUNKED] * 6, most=2) as (fake, connections):
        await asyncio.gather(*(connections.post("/", b"{}") for _ in range(6)))
        assert fake.connected <= 2


async def test_a_closed_connection_is_replaced():
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nbye"  # without a length: it ends with the connection
    async with connected(closing, CHUNKED) as (fake, connections):
        assert (await connections.post("/", b"{}")).text == "bye"
        assert (await connections.post("/", b"{}")).text == "hello!"
        assert fake.connected == 2


async def test_a_connection_that_breaks_is_an_error_of_the_world():
    async with connected(None) as (_, connections):
        with pytest.raises(OSError, match="closed the connection"):
            await connections.post("/", b"{}")


async def test_what_is_not_http_is_an_unexpected_answer():
    async with connected(b"SSH-2.0-server\r\n\r\n") as (_, connections):
        with pytest.raises(UnexpectedAnswerError, match="not HTTP"):
            await connections.post("/", b"{}")


async def test_a_refusal_is_an_error_with_its_text():
    refusal = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 8\r\n\r\ntoo many"
    async with connected(refusal) as (_, connections):
        with pytest.raises(UnexpectedAnswerError, match="429: too many"):
            await exchange(connections, "/v1/completions", b"{}", Timing(0))
