"""Sends one request of the mix to a server and reads its answer, or hangs up half-way."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx

from trimaran.bench.mix import Request


class UnexpectedAnswerError(Exception):
    """An answer that was not the one asked for."""


async def send(client: httpx.AsyncClient, request: Request) -> list[str]:
    """The texts of the answer, by choice; empty when it was hung up on or refused as it should be.

    Raises ``UnexpectedAnswerError``, and ``httpx.HTTPError`` when the connection fails.
    """
    try:
        async with asyncio.timeout(request.cancel_seconds):
            if not request.streams:
                answer = await client.post(request.path, json=request.body)
                _expect(request, answer, answer.text)
                return _texts([answer.json()]) if answer.status_code == 200 else []
            async with client.stream("POST", request.path, json=request.body) as stream:
                if stream.status_code != 200:
                    _expect(request, stream, (await stream.aread()).decode())
                    return []
                events: list[dict[str, Any]] = []
                async for event in _events(stream):
                    if request.cancel_events is not None and len(events) >= request.cancel_events:
                        return []
                    events.append(event)
                return _texts(events)
    except TimeoutError:
        return []


def _expect(request: Request, answer: httpx.Response, text: str) -> None:
    if answer.status_code != request.status:
        raise UnexpectedAnswerError(f"{answer.status_code} instead of {request.status}: {text[:300]}")


async def _events(stream: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The stream's events; raises when one is an error or when the stream ends without saying so."""
    async for line in stream.aiter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise UnexpectedAnswerError(f"error event {event['error']}")
            yield event
    raise UnexpectedAnswerError("a stream that stopped without [DONE]")


def _texts(answers: Sequence[dict[str, Any]]) -> list[str]:
    """Text of each choice, joined over the events of a stream."""
    texts: dict[int, str] = {}
    for answer in answers:
        for choice in answer["choices"]:
            inner = choice.get("message") or choice.get("delta") or choice
            texts[choice["index"]] = texts.get(choice["index"], "") + (inner.get("content") or inner.get("text") or "")
    return [text for _, text in sorted(texts.items())]
