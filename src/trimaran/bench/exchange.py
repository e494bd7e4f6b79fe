"""One streamed request to any OpenAI endpoint, and when its tokens came.

While tokens come, only bytes and times are kept (``connection.py``): they are read once the answer is whole.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from trimaran.bench.client import UnexpectedAnswerError
from trimaran.bench.connection import Connections


@dataclass
class Timing:
    """One request's life; times are readings of one clock in seconds."""

    sent: float
    ended: float = 0.0
    pieces: list[float] = field(default_factory=list)  # when each piece of text came
    last: float = 0.0  # when the last token came, be it without text
    prompt_tokens: int | None = None  # both None: the server did not say
    output_tokens: int | None = None
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first token."""
        return (self.pieces[0] if self.pieces else self.last) - self.sent

    @property
    def e2e(self) -> float:
        """Seconds from sending to the end of the answer."""
        return self.ended - self.sent

    @property
    def tokens(self) -> int:
        """Tokens that came: what the server says, or else the number of pieces."""
        return len(self.pieces) if self.output_tokens is None else self.output_tokens

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None when there was only one."""
        return (self.last - self.sent - self.ttft) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece and the next."""
        return [after - before for before, after in pairwise(self.pieces)]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def shows(self) -> bool:
        """Whether there is text in it; the first event of a chat often has a role only."""
        delta = self.delta or _Delta()
        return bool(self.text or delta.content or delta.reasoning_content or delta.reasoning)


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Event)


async def exchange(connections: Connections, path: str, body: bytes, timing: Timing) -> None:
    """Sends ``body`` and fills ``timing``.

    Raises ``UnexpectedAnswerError`` when the answer is not a whole stream, and ``OSError`` when the connection fails.
    """
    answer = await connections.post(path, body)
    timing.ended = time.perf_counter()
    if answer.status != 200:
        raise UnexpectedAnswerError(f"{answer.status}: {answer.text[:300]}")
    read(answer.received, timing)


def read(received: Sequence[tuple[float, bytes]], timing: Timing) -> None:
    """Fills ``timing`` from the bytes of a stream of events and when they came; raises ``UnexpectedAnswerError``."""
    rest = b""
    for at, data in received:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            content = line[5:].strip()
            if content == b"[DONE]":
                if not timing.last:
                    raise UnexpectedAnswerError("an answer without a token")
                return
            _note(content, at, timing)
    raise UnexpectedAnswerError("a stream that stopped without [DONE]")


def _note(content: bytes, at: float, timing: Timing) -> None:
    try:
        event = _DECODER.decode(content)
    except msgspec.MsgspecError as error:
        raise UnexpectedAnswerError(f"an event that cannot be read: {error}") from error
    if event.error is not None:
        raise UnexpectedAnswerError(f"error event {str(event.error)[:300]}")
    for choice in event.choices or ():
        if choice.shows():
            timing.pieces.append(at)
        if choice.shows() or choice.finish_reason is not None:
            timing.last = at
    if event.usage is not None and event.usage.completion_tokens is not None:
        timing.prompt_tokens, timing.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
