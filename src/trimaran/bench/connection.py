"""HTTP/1.1 to one server, at little cost: a client beside the server takes its cores from what it measures.

While an answer comes, only its bytes are kept and when they came. Connections stay open between requests.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import httptools
import httpx

from trimaran.bench.client import UnexpectedAnswerError


@dataclass
class Answer:
    """``received`` holds the body's parts, each with the reading of ``time.perf_counter`` when it came."""

    status: int
    received: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return b"".join(data for _, data in self.received).decode(errors="replace")


class Connections:
    """At most ``most`` connections to ``url``, each for one request at a time; more wait. Leaving closes them."""

    def __init__(self, url: httpx.URL, headers: Mapping[str, str], most: int, keep: float) -> None:
        """``headers`` go with every request. What has been idle for ``keep`` seconds is not used again."""
        self._url, self._keep = url, keep
        self._head = "".join(f"{name}: {value}\r\n" for name, value in {"host": url.netloc.decode(), **headers}.items())
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._places = asyncio.Semaphore(most)
        self._idle: list[tuple[float, _Connection]] = []

    async def post(self, path: str, body: bytes) -> Answer:
        """Raises ``OSError`` when the connection fails and ``UnexpectedAnswerError`` when the answer is not HTTP."""
        request = f"POST {self._url.path.rstrip('/')}{path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n\r\n"
        async with self._places:
            connection = await self._connected()
            try:
                answer = await connection.ask(request.encode() + body)
            except BaseException:
                connection.close()
                raise
            if connection.open:
                self._idle.append((time.monotonic(), connection))
            return answer

    def close(self) -> None:
        for _, connection in self._idle:
            connection.close()

    async def _connected(self) -> "_Connection":
        while self._idle:
            since, connection = self._idle.pop()
            if connection.open and time.monotonic() - since < self._keep:
                return connection
            connection.close()
        port = self._url.port or (443 if self._tls else 80)
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, self._url.host, port, ssl=self._tls)
        return made


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.open = False
        self._answer: Answer | None = None

    async def ask(self, request: bytes) -> Answer:
        self._parser = httptools.HttpResponseParser(self)
        self._received: list[tuple[float, bytes]] = []
        self._answer = None
        self._done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        self.open = False
        self._transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # what sockets get
        self._transport = transport
        self.open = True

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(UnexpectedAnswerError(f"an answer that is not HTTP: {error}"))

    def on_headers_complete(self) -> None:
        self._answer = Answer(self._parser.get_status_code(), self._received)

    def on_body(self, data: bytes) -> None:
        self._received.append((self._now, data))

    def on_message_complete(self) -> None:
        self.open = self.open and self._parser.should_keep_alive()
        self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if exc is None and self._answer is not None:
            self._finish()  # a body without a length ends so
        else:
            self._fail(exc or ConnectionError("the server closed the connection"))

    def _finish(self) -> None:
        if self._answer is not None and not self._done.done():
            self._done.set_result(self._answer)

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)
