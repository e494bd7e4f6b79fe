"""A server over two pools whose workers are killed and whose clients leave: no wrong text, and an end for everybody."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from trimaran.bench.processes import tree
from trimaran.bench.served import Served

QUIET = ("--canary-interval", "0", "--max-num-seqs", "16", "--max-model-len", "1024")
POOLS = (
    "--pools",
    "prefill=1,decode=1",
    "--restart-limit",
    "1000",
    "--restart-stable",
    "0.5",
    "--timeout-handoff",
    "20",
)
DEADLINE = 90.0  # seconds within which every request has to end
RECOVERY = 60.0  # from a kill until requests are answered again
SETTLE = 25.0  # the lease, and a little more
KINDS = ("prefill worker killed", "client leaves", "decode worker killed", "over-long prompt")
NEIGHBOURS = 3
ANSWER = 48  # tokens
SENTENCES = (
    "The quick brown fox jumps over the lazy dog. ",
    "One two three four. ",
    "It was a dark and stormy night; ",
)


@dataclass
class Tally:
    """What came of a campaign; ``wrong`` is empty when all is well."""

    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)  # seconds
    wrong: list[str] = field(default_factory=list)

    def to_text(self) -> str:
        faults = ", ".join(f"{count} x {fault}" for fault, count in sorted(self.faults.items()))
        ends = ", ".join(f"{count} x {end}" for end, count in sorted(self.ends.items()))
        most = f"; answers again after {max(self.recoveries):.1f} s at most" if self.recoveries else ""
        return f"{self.faults.total()} requests with a fault each, over HTTP: {faults}\n  ended: {ends}{most}"


class Campaign:
    """Against a server of its own; texts are compared with those of one engine."""

    def __init__(self, model: str, flags: Sequence[str], seed: int = 0) -> None:
        self.tally = Tally()
        self._model = model
        self._flags = flags
        self._random = Random(seed)
        self._prompts = [
            f"{number}. {self._random.choice(SENTENCES)}" * self._random.randrange(1, 24) for number in range(16)
        ]
        self._expected: dict[str, str] = {}

    async def run(self, requests: int) -> Tally:
        """So many requests with a fault, one after the other, each among neighbours."""
        async with Served(self._model, [*QUIET, *self._flags]) as alone:
            for prompt in self._prompts:
                answer = await alone.client.post("/v1/completions", json=_body(alone.name, prompt))
                self._expected[prompt] = answer.raise_for_status().json()["choices"][0]["text"]
        async with Served(self._model, [*QUIET, *POOLS, *self._flags]) as server:
            for number in range(requests):
                await self._one(server, KINDS[number % len(KINDS)])
            await self._settle(server)
        if server.exit_code != 0:
            self.tally.wrong.append(f"the server ended with {server.exit_code}:\n" + "".join(server.log[-10:]))
        return self.tally

    async def _one(self, server: Served, kind: str) -> None:
        self.tally.faults[kind] += 1
        work = [self._ask(server, self._random.choice(self._prompts)) for _ in range(NEIGHBOURS)]
        match kind:
            case "over-long prompt":
                work.append(self._too_long(server))
            case "client leaves":
                work.append(self._leave(server))
            case _:
                work.append(self._ask(server, self._random.choice(self._prompts)))
                work.append(self._kill(server, kind.split()[0]))
        await asyncio.gather(*work)
        await self._recovered(server)

    async def _ask(self, server: Served, prompt: str) -> None:
        """Asks, and holds the answer to what one engine says."""
        stream = self._random.random() < 0.5
        await asyncio.sleep(self._random.random() * 0.05)
        try:
            async with asyncio.timeout(DEADLINE):
                end, text = await _answer(server.client, _body(server.name, prompt, stream=stream), stream=stream)
        except TimeoutError:
            self.tally.wrong.append(f"no end within {DEADLINE:g} s")
            return
        except httpx.HTTPError as error:
            self.tally.wrong.append(f"{type(error).__name__} {error}")
            return
        self.tally.ends[end] += 1
        expected = self._expected[prompt]
        if text != expected if end == "right text" else not expected.startswith(text):
            self.tally.wrong.append(f"{end}, but {text!r} is not {expected!r}")

    async def _too_long(self, server: Served) -> None:
        answer = await server.client.post("/v1/completions", json=_body(server.name, "long " * 4000))
        self.tally.ends[f"{answer.status_code}"] += 1
        if answer.status_code != 400:
            self.tally.wrong.append(f"an over-long prompt got {answer.status_code}")

    async def _leave(self, server: Served) -> None:
        body = _body(server.name, self._random.choice(self._prompts), stream=True)
        try:
            async with asyncio.timeout(self._random.random() * 0.3):
                await _answer(server.client, body, stream=True)
        except TimeoutError:
            self.tally.ends["client left"] += 1
        else:
            self.tally.ends["right text"] += 1

    async def _kill(self, server: Served, role: str) -> None:
        await asyncio.sleep(self._random.random() * 0.25)
        for folder in tree(server.pid):
            if f"{role}-0".encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                return
        self.tally.wrong.append(f"no process of the {role} worker")

    async def _recovered(self, server: Served) -> None:
        began = time.monotonic()
        while (await server.client.get("/ready")).status_code != 200:
            if time.monotonic() - began > RECOVERY:
                self.tally.wrong.append(f"not ready within {RECOVERY:g} s")
                return
            await asyncio.sleep(0.02)
        self.tally.recoveries.append(time.monotonic() - began)

    async def _settle(self, server: Served) -> None:
        """Pages of both workers come back, and places with the router."""
        until = time.monotonic() + SETTLE
        while True:
            metrics = await server.metrics()
            taken = metrics["trimaran_pages"] - metrics["trimaran_pages_free"] - metrics["trimaran_pages_cached"]
            held = (taken, metrics["trimaran_page_leases"], metrics["trimaran_router_tokens"])
            if not any(held):
                return
            if time.monotonic() > until:
                self.tally.wrong.append(f"pages, leases or tokens with the router did not come back: {held}")
                return
            await asyncio.sleep(0.1)


def _body(model: str, prompt: str, *, stream: bool = False) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "stream": stream}


async def _answer(client: httpx.AsyncClient, body: dict[str, Any], *, stream: bool) -> tuple[str, str]:
    """How a request ended, and its text as far as it came."""
    if not stream:
        answer = await client.post("/v1/completions", json=body)
        if answer.status_code == 200:
            return "right text", answer.json()["choices"][0]["text"]
        return f"{answer.status_code} {answer.json()['error']['code']}", ""
    text = ""
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            return f"{response.status_code} {json.loads(await response.aread())['error']['code']}", ""
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                return "right text", text
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return f"{event['error']['code']} in the stream", text
                text += "".join(choice["text"] for choice in event["choices"])
    return "a stream without an end", text
