"""Loads an OpenAI endpoint, ours or another's: open loop (requests are sent when due) or closed (N at a time)."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import numpy as np

from trimaran.base.errors import ConfigError, TrimaranError
from trimaran.bench.arrivals import Job
from trimaran.bench.client import UnexpectedAnswerError
from trimaran.bench.connection import Connections
from trimaran.bench.exchange import Timing, exchange
from trimaran.bench.mix import CHAT, COMPLETIONS, WORDS

MAX_CONNECTIONS = 512  # of an open loop; what is due beyond them waits, and its TTFT counts the wait
KEEP_SECONDS = 2  # an idle connection is closed before the server does it, perhaps just as it is used


@dataclass(frozen=True)
class Target:
    """Whom to load and what to ask. Every request ends within ``timeout`` seconds."""

    url: str
    model: str | None = None  # None: the first that the server names
    api_key: str | None = field(default=None, repr=False)
    chat: bool = False
    text: bool = False  # prompts are words, about a token each, instead of exact token ids
    ignore_eos: bool = False
    vocab: int = 30_000  # token ids of prompts are below this
    timeout: float = 300.0

    def hide_key(self, text: str) -> str:
        """``text`` without the key, should a server repeat it."""
        return text.replace(self.api_key, "[key]") if self.api_key else text


@dataclass
class Loaded:
    """What a load saw, as far as it got. ``cut_off`` requests were in flight when it was interrupted."""

    model: str = ""
    timings: list[Timing] = field(default_factory=list)
    cut_off: int = 0
    interrupted: bool = False
    lateness: float = 0.0  # seconds that a request was sent after it was due, at worst
    client_cores: float = 0.0  # cores that this process used meanwhile


async def load(
    target: Target,
    jobs: Sequence[Job],
    concurrency: int | None = None,
    warm_up: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Loaded:
    """Sends ``jobs``: when due, or ``concurrency`` at a time. Prompts are random and new in every run.

    The first ``warm_up`` jobs are sent beforehand too, one by one, uncounted. Cancelling ends the load and returns what
    there is. Raises ``TrimaranError`` when the server does not say which model it has or the warm-up fails.
    """
    found = Loaded()
    url, headers = _address(target), _headers(target)
    with closing(Connections(url, headers, concurrency or MAX_CONNECTIONS, KEEP_SECONDS)) as connections:
        sender = _Sender(connections, target, found)
        try:
            found.model = sender.model = target.model or await _first_model(url, headers, target)
            for job in jobs[:warm_up]:
                if error := (await sender.time(job, time.perf_counter())).error:
                    raise TrimaranError(f"{target.url} does not serve what is asked: {error}")
            progress(f"sending {len(jobs)} requests")
            began, busy = time.perf_counter(), time.process_time()
            try:
                async with asyncio.TaskGroup() as group:
                    if concurrency:
                        queue = iter(jobs)
                        for _ in range(min(concurrency, len(jobs))):
                            group.create_task(sender.work(queue))
                    else:
                        for job in jobs:
                            await asyncio.sleep(max(0.0, began + job.due - time.perf_counter()))
                            found.lateness = max(found.lateness, time.perf_counter() - began - job.due)
                            group.create_task(sender.send(job, began + job.due))
            finally:
                found.client_cores = (time.process_time() - busy) / (time.perf_counter() - began)
        except asyncio.CancelledError:
            found.interrupted = True
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
    return found


class _Sender:
    """Builds requests, sends them and keeps their timings."""

    def __init__(self, connections: Connections, target: Target, found: Loaded) -> None:
        self.model = ""
        self._connections, self._target, self._found = connections, target, found
        self._random = np.random.default_rng()

    async def work(self, queue: Iterator[Job]) -> None:
        for job in queue:
            await self.send(job, time.perf_counter())

    async def send(self, job: Job, sent: float) -> None:
        try:
            self._found.timings.append(await self.time(job, sent))
        except asyncio.CancelledError:
            self._found.cut_off += 1
            raise

    async def time(self, job: Job, sent: float) -> Timing:
        """Sends ``job`` and returns its timing, which holds the error if there was one."""
        timing = Timing(sent)
        try:
            async with asyncio.timeout(self._target.timeout):
                await exchange(self._connections, CHAT if self._target.chat else COMPLETIONS, self._body(job), timing)
        except TimeoutError:
            timing.error = f"no end within {self._target.timeout:g} s"
        except UnexpectedAnswerError as error:
            timing.error = self._target.hide_key(str(error))
        except OSError as error:
            timing.error = self._target.hide_key(f"{type(error).__name__} {error}".strip())
        timing.ended = timing.ended or time.perf_counter()
        return timing

    def _body(self, job: Job) -> bytes:
        body: dict[str, Any] = {"model": self.model, "max_tokens": job.output, "temperature": 0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if self._target.ignore_eos:
            body["ignore_eos"] = True
        if self._target.chat:
            body["messages"] = [{"role": "user", "content": self._words(job.prompt)}]
        elif self._target.text:
            body["prompt"] = self._words(job.prompt)
        else:
            body["prompt"] = self._random.integers(
                min(3, self._target.vocab - 1), self._target.vocab, job.prompt
            ).tolist()
        return msgspec.json.encode(body)

    def _words(self, count: int) -> str:
        return " ".join(WORDS[place] for place in self._random.integers(len(WORDS), size=count).tolist())


def _headers(target: Target) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if target.api_key:
        if not (target.api_key.isascii() and target.api_key.isprintable()):
            raise ConfigError("the API key holds characters that no HTTP header may hold")
        headers["authorization"] = f"Bearer {target.api_key}"
    return headers


def _address(target: Target) -> httpx.URL:
    try:
        url = httpx.URL(target.url.rstrip("/").removesuffix("/v1"))
    except httpx.InvalidURL as error:
        raise ConfigError(f"--url {target.url}: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"--url takes an address like http://127.0.0.1:8000, not {target.url!r}")
    return url


async def _first_model(url: httpx.URL, headers: dict[str, str], target: Target) -> str:
    try:
        # No proxy, as in the load: it would be measured too.
        async with (
            asyncio.timeout(target.timeout),
            httpx.AsyncClient(base_url=url, headers=headers, timeout=target.timeout, trust_env=False) as client,
        ):
            answer = (await client.get("/v1/models")).raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, TimeoutError) as error:
        reason = target.hide_key(str(error)) or type(error).__name__
        raise TrimaranError(f"{target.url} does not say which model it has: {reason}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise TrimaranError(f"{target.url} names no model; say which with --model") from error
