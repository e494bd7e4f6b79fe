"""Kills the engine of a server under load, again and again: who noticed, how soon it was back, what was left behind."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx

from trimaran.bench.processes import tree
from trimaran.bench.served import Served

FLAGS = ("--restart", "on-failure", "--restart-limit", "5", "--restart-stable", "0.5")
STREAM_SECONDS = 300.0  # within which every stream has to end
RECOVERY_SECONDS = 120.0
SETTLE_SECONDS = 20.0
LOOKS = 4
ENDS = ("completed", "engine_unavailable in the stream", "engine_unavailable at once")
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Traces:
    """What a server holds when nothing runs."""

    pages: float  # that may be taken
    descriptors: int
    threads: int
    processes: int
    shared_memory: frozenset[str]


@dataclass
class Campaign:
    """What a campaign saw; ``failures`` is empty when all is well."""

    kills: int = 0
    streams: Counter[str] = field(default_factory=Counter)  # by how they ended
    recoveries: list[float] = field(default_factory=list)  # seconds from a kill to ``/ready``
    failures: list[str] = field(default_factory=list)
    before: Traces | None = None
    after: Traces | None = None


async def kill_engines(model: str, kills: int, streams: int, seed: int, flags: Sequence[str]) -> Campaign:
    """Runs the campaign against a server of its own; raises ``EngineDiedError`` when that does not start."""
    campaign, random = Campaign(), Random(seed)
    engines: set[int] = set()
    server = Served(model, [*FLAGS, "--max-num-seqs", str(streams), *flags])
    async with server:
        await _load(server, streams, Campaign(), asyncio.sleep(0.5))  # so that all that comes with load is there
        campaign.before = await _traces(server)
        await _load(server, streams, campaign, _kill(server, kills, streams, random, campaign, engines))
        campaign.after = await _traces(server)
        engines.add(_engine(server))
    if campaign.before != campaign.after:
        campaign.failures.append(f"before {campaign.before}, after {campaign.after}")
    if server.exit_code != 0:
        campaign.failures.append(f"the server ended with {server.exit_code}:\n" + "".join(server.log[-10:]))
    campaign.failures += [f"the engine process {pid} is still there" for pid in engines if _exists(pid)]
    return campaign


async def _load(server: Served, streams: int, campaign: Campaign, work: Coroutine[Any, Any, None]) -> None:
    """Keeps ``streams`` streams open until ``work`` is done, and waits for the last of them."""
    done = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(streams):
            group.create_task(_streams(server, number, campaign, done))
        try:
            await work
        finally:
            done.set()


async def _streams(server: Served, number: int, campaign: Campaign, done: asyncio.Event) -> None:
    random = Random(number)
    while not done.is_set():
        body = {
            "model": server.name,
            "prompt": f"{number} times",
            "max_tokens": random.choice((10, 100, 1000)),
            "stream": True,
            "ignore_eos": True,
        }
        kills = campaign.kills
        try:
            async with asyncio.timeout(STREAM_SECONDS):
                ended = await _stream(server.client, body)
        except TimeoutError:
            ended = f"no end within {STREAM_SECONDS:g} s, in which the engine died {campaign.kills - kills} times"
        except httpx.HTTPError as error:
            ended = f"{type(error).__name__} {error}"
        campaign.streams[ended] += 1
        if ended not in ENDS:
            campaign.failures.append(f"a stream ended so: {ended}")
        if ended != ENDS[0]:
            await asyncio.sleep(0.2)


async def _stream(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """How one stream ended. It has a connection of its own: whatever the server does not give back will be seen."""
    async with client.stream("POST", "/v1/completions", json=body, headers={"connection": "close"}) as answer:
        if answer.status_code != 200:
            error = json.loads(await answer.aread())["error"]
            return f"{error['code']} at once" if answer.status_code == 503 else f"{answer.status_code} {error}"
        last = ""
        async for line in answer.aiter_lines():
            last = line or last
    if last == "data: [DONE]":
        return "completed"
    event = json.loads(last.removeprefix("data: "))
    return f"{event['error']['code']} in the stream" if "error" in event else f"no end, but {last[:200]}"


async def _kill(
    server: Served, kills: int, streams: int, random: Random, campaign: Campaign, engines: set[int]
) -> None:
    for _ in range(kills):
        await _until_running(server, streams)
        await asyncio.sleep(0.5 + random.random())  # a life that is long enough to begin a new row of restarts
        engine = _engine(server)
        engines.add(engine)
        os.kill(engine, signal.SIGKILL)
        began = time.monotonic()
        campaign.kills += 1
        async with asyncio.timeout(RECOVERY_SECONDS):
            while not await _recovered(server, engine):  # noqa: ASYNC110 - another process cannot set an event
                await asyncio.sleep(0.05)
        campaign.recoveries.append(time.monotonic() - began)


async def _recovered(server: Served, dead: int) -> bool:
    return _engine(server, default=dead) != dead and (await server.client.get("/ready")).status_code == 200


async def _until_running(server: Served, streams: int) -> None:
    async with asyncio.timeout(RECOVERY_SECONDS):
        while await _running(server) < streams // 2:  # noqa: ASYNC110 - another process cannot set an event
            await asyncio.sleep(0.05)


async def _running(server: Served) -> float:
    return (await server.metrics())["trimaran_sequences_running"]


def _engine(server: Served, default: int | None = None) -> int:
    """The engine's process, or ``default`` while there is none."""
    for folder in tree(server.pid):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"trimaran.engine.worker" in command and "Z" not in _state(folder):
            return int(folder.name)
    assert default is not None, "the server has no engine"
    return default


def _state(folder: Path) -> str:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0]


async def _traces(server: Served) -> Traces:
    """What is held once nothing runs and ``LOOKS`` looks agree: on a busy machine, what is shown may be old."""
    looks: list[Traces] = []
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        await asyncio.sleep(0.5)
        metrics = await server.metrics()
        now = _look(server.pid, metrics["trimaran_pages_free"] + metrics["trimaran_pages_cached"])
        idle = metrics["trimaran_sequences_running"] == metrics["trimaran_sequences_waiting"] == 0
        looks = [*looks, now][-LOOKS:] if idle else []
        if (len(looks) == LOOKS and len(set(looks)) == 1) or time.monotonic() > end:
            return now


def _look(pid: int, pages: float) -> Traces:
    folder = Path(f"/proc/{pid}")
    return Traces(
        pages,
        len(list((folder / "fd").iterdir())),
        len(list((folder / "task").iterdir())),
        len(list(tree(pid))),
        frozenset(file.name for file in SHARED_MEMORY.glob("*trimaran*")),
    )


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
