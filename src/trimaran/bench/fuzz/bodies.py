"""Damaged requests to a server of our own: every one is answered, in the protocol's shape, and never with a 500."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx

from trimaran.bench.fuzz.damage import damaged_bytes, damaged_json, json_bytes
from trimaran.bench.fuzz.request_samples import PATHS, draw_request, raw_request
from trimaran.bench.fuzz.tally import Finding, Tally, counted
from trimaran.bench.served import Served

CASE_SECONDS = 120.0  # far above all of the server's own time limits
FLAGS = (
    "--executor", "null", "--max-model-len", "8192", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "64M",
    "--timeout-body", "1", "--timeout-keep-alive", "1", "--max-body-bytes", "100000",
    "--tool-call-parser", "hermes",
)  # fmt: skip
GROWTH = 256 << 20  # bytes that server and engine may take more at the end than after the first requests
METHODS = ("GET", "POST", "PUT", "OPTIONS", "HEAD", "DELETE", "PATCH", "X")
TYPES = ("application/json", "application/json; charset=utf-16", "text/plain", "multipart/form-data", "", "a/b+json")


class WrongAnswerError(Exception):
    """An answer that must not be given."""


async def fuzz_bodies(
    seed: int, model: str, tally: Tally, more: Callable[[], bool], *, concurrency: int = 8, first: int = 0
) -> None:
    """Runs cases ``seed/http-N`` for as long as ``more()`` says so; raises ``EngineDiedError`` if nothing starts."""
    async with Served(model, FLAGS) as server:
        numbers = counted(first, more)
        await _work(server, seed, iter([next(numbers, first) for _ in range(50)]), tally)  # so that all is loaded
        before, pages = server.resident_bytes() or 0, await _pages(server)
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(_work(server, seed, numbers, tally))
        last = f"{seed}/http-{next(counted(0, lambda: True))}"
        if await _pages(server) != pages:
            tally.note(Finding("server", f"pages were {pages:.0f} and are {await _pages(server):.0f}", last))
        if (ready := await server.client.get("/ready")).status_code != 200:
            tally.note(Finding("server", f"/ready answers {ready.status_code} at the end", last))
        if (await server.metrics())["trimaran_engine_restarts_total"]:
            tally.note(Finding("server", "the engine was started anew", last))
        if (growth := (server.resident_bytes() or 0) - before) > GROWTH:
            tally.note(Finding("server", f"memory rose by {growth >> 20} MiB", last))
    if server.exit_code != 0:
        tally.note(Finding("server", f"ended with {server.exit_code}", last))


async def _work(server: Served, seed: int, numbers: Iterator[int], tally: Tally) -> None:
    for number in numbers:
        case = f"{seed}/http-{number}"
        random = Random(case)
        kind = random.choice(("body", "body", "body", "route", "raw"))
        lines, began = len(server.log), time.monotonic()
        try:
            async with asyncio.timeout(CASE_SECONDS):
                outcome = await {"body": _body, "route": _route, "raw": _raw}[kind](server, random)
        except TimeoutError:
            outcome = "hang"
            tally.note(Finding(kind, f"no end within {CASE_SECONDS:g} s", case))
        except (WrongAnswerError, httpx.HTTPError, OSError) as error:
            outcome = "wrong"
            raised = [line.strip() for line in server.log[lines:] if "Error" in line][-1:]
            tally.note(Finding(kind, f"{type(error).__name__} {error} {' '.join(raised)}"[:400], case))
        tally.took(kind, time.monotonic() - began, case)
        tally.counts[kind, outcome] += 1


async def _body(server: Served, random: Random) -> str:
    request = draw_request(random, server.name)
    data = json_bytes(random, damaged_json(random, request.body) if random.random() < 0.7 else request.body)
    answer = await server.client.post(request.path, content=data, headers={"content-type": "application/json"})
    return _judge(answer.status_code, answer.headers.get("content-type", ""), answer.content)


async def _route(server: Served, random: Random) -> str:
    method, path = random.choice(METHODS), random.choice(PATHS)
    odd = random.choice((b"authorization", b"accept", b"x"))
    headers = {b"content-type": random.choice(TYPES).encode(), odd: b"\x80 \t,;="}
    content = json_bytes(random, draw_request(random, server.name).body) if random.random() < 0.5 else b""
    answer = await server.client.request(
        method, httpx.URL(server.url).copy_with(raw_path=path.encode()), content=content, headers=headers
    )
    if method == "HEAD":
        return "answered" if answer.status_code < 500 else _judge(answer.status_code, "", b"")
    return _judge(answer.status_code, answer.headers.get("content-type", ""), answer.content)


async def _raw(server: Served, random: Random) -> str:
    """Bytes that are hardly HTTP: the server may say nothing, but it closes, and what it says is right."""
    where = urlsplit(server.url)
    data = damaged_bytes(random, raw_request(random, server.name, where.netloc))
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(data)
        if random.random() < 0.5:
            writer.write_eof()
        answer = await reader.read(-1)
    except ConnectionError:
        return "reset"
    finally:
        writer.close()
    if not answer:
        return "closed"
    head = answer.split(b"\r\n", 1)[0]
    status = head.split(b" ")[1:2]
    if not head.startswith(b"HTTP/1.1 ") or not status or not status[0].isdigit():
        raise WrongAnswerError(f"it says {answer[:80]!r}")
    if int(status[0]) >= 500 and b"engine_unavailable" not in answer:
        raise WrongAnswerError(f"it says {answer[:300]!r}")
    return "answered" if int(status[0]) < 400 else "refused"


def _judge(status: int, kind: str, body: bytes) -> str:
    if status < 400:
        if kind.startswith("text/event-stream"):
            _judge_stream(body)
        return "answered"
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        raise WrongAnswerError(f"{status} without an error in OpenAI's shape: {body[:200]!r}") from None
    _judge_error(status, error)
    return "refused"


def _judge_error(status: int, error: dict[str, Any]) -> None:
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        raise WrongAnswerError(f"{status} without an error in OpenAI's shape: {str(error)[:200]}")
    if status >= 500 and error["code"] != "engine_unavailable":
        raise WrongAnswerError(f"{status} {error['code']}: {error['message'][:200]}")


def _judge_stream(body: bytes) -> None:
    *_, last = body.removesuffix(b"\n\n").rsplit(b"\n\n", 1)
    if last == b"data: [DONE]":
        return
    event = json.loads(last.removeprefix(b"data: "))
    if "error" not in event:
        raise WrongAnswerError(f"a stream stopped without [DONE]: {last[-200:]!r}")
    _judge_error(500 if event["error"]["type"] == "server_error" else 400, event["error"])


async def _pages(server: Served) -> float:
    """Pages that may be taken, once nothing runs any more."""
    for _ in range(100):
        found = await server.metrics()
        if found["trimaran_sequences_running"] == found["trimaran_sequences_waiting"] == 0:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.6)  # a beat later, the gauges are those of now
    found = await server.metrics()
    return found["trimaran_pages_free"] + found["trimaran_pages_cached"]
