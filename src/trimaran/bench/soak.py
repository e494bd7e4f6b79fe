"""Loads a server with mixed requests for a while, then asks: did anything go wrong, leak, or change an answer?"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

import httpx
import numpy as np

from trimaran.bench.client import UnexpectedAnswerError, send
from trimaran.bench.mix import Request, draw, probes
from trimaran.bench.served import Served

MODEL_LENGTH = 2048
SETTLE_SECONDS = 10
JUDGE_SECONDS = 60  # shorter runs report memory, but do not judge it
GROWTH_LIMIT = 8 << 20  # bytes that the fitted line may rise between warm-up and end


@dataclass
class Findings:
    """What a soak saw; ``failures`` is empty when all is well."""

    seconds: float
    requests: Counter[str] = field(default_factory=Counter)
    checked_answers: int = 0
    failures: list[str] = field(default_factory=list)
    pages: tuple[float, float] = (0, 0)  # free before and after
    resident: list[tuple[float, int]] = field(default_factory=list)  # (seconds since start, bytes)
    growth: float | None = None  # bytes that the line fitted to ``resident`` rises from warm-up to end
    engine: dict[str, float] = field(default_factory=dict)  # counters of /metrics

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def soak(model: str, seconds: float, concurrency: int, seed: int, flags: Sequence[str]) -> Findings:
    """Runs the soak against a server of its own; raises ``EngineDiedError`` when that does not start."""
    findings = Findings(seconds)
    server = Served(model, ["--max-model-len", str(MODEL_LENGTH), *flags])
    async with server:
        known = [await _with_answer(server, probe) for probe in probes(server.name)]
        before = await _settled(server)
        deadline = time.monotonic() + seconds
        watching = asyncio.create_task(_watch_memory(server, findings, deadline))
        async with asyncio.TaskGroup() as group:
            for worker in range(concurrency):
                group.create_task(_work(server, Random(f"{seed}/{worker}"), known, deadline, findings))
        await watching
        after = await _settled(server)
        _judge(findings, before, after)
        if (ready := await server.client.get("/ready")).status_code != 200:
            findings.failures.append(f"/ready answers {ready.status_code} at the end")
    if server.exit_code != 0:
        findings.failures.append(f"the server ended with {server.exit_code}:\n" + "".join(server.log[-10:]))
    return findings


async def _with_answer(server: Served, probe: Request) -> Request:
    """``probe`` with the texts it brings when nothing else runs."""
    return replace(probe, expected=tuple(await send(server.client, probe)))


async def _work(server: Served, random: Random, known: Sequence[Request], deadline: float, findings: Findings) -> None:
    while time.monotonic() < deadline:
        request = draw(random, server.name, known)
        try:
            texts = await send(server.client, request)
        except UnexpectedAnswerError as error:
            findings.failures.append(f"{error} to {request.body}")
            continue
        except httpx.HTTPError as error:
            findings.failures.append(f"{type(error).__name__} {error} on {request.body}")
            continue
        findings.requests[_kind(request)] += 1
        if request.expected is not None:
            findings.checked_answers += 1
            if tuple(texts) != request.expected:
                findings.failures.append(f"alone {request.expected}, under load {texts}, for {request.body}")


def _kind(request: Request) -> str:
    if request.status != 200:
        return "refused"
    hung_up = request.cancel_events is not None or request.cancel_seconds is not None
    return ("streamed" if request.streams else "whole") + (", hung up" if hung_up else "")


async def _settled(server: Served) -> dict[str, float]:
    """Metrics once nothing runs or waits and two readings agree on the free pages."""
    last: dict[str, float] = {}
    for _ in range(2 * SETTLE_SECONDS):
        await asyncio.sleep(0.5)
        now = await server.metrics()
        idle = now["trimaran_sequences_running"] == now["trimaran_sequences_waiting"] == 0
        if idle and last and _takable_pages(last) == _takable_pages(now):
            return now
        last = now
    return last


def _takable_pages(metrics: dict[str, float]) -> float:
    """Pages that nobody holds: empty ones, and those that only the prefix cache still knows."""
    return metrics["trimaran_pages_free"] + metrics["trimaran_pages_cached"]


async def _watch_memory(server: Served, findings: Findings, deadline: float) -> None:
    began = time.monotonic()
    while (now := time.monotonic()) < deadline:
        if (resident := server.resident_bytes()) is not None:
            findings.resident.append((now - began, resident))
        await asyncio.sleep(0.5)


def _judge(findings: Findings, before: dict[str, float], after: dict[str, float]) -> None:
    findings.engine = {name: value for name, value in after.items() if name.startswith("trimaran_")}
    findings.pages = _takable_pages(before), _takable_pages(after)
    if findings.pages[0] != findings.pages[1]:
        findings.failures.append(f"free pages went from {findings.pages[0]:.0f} to {findings.pages[1]:.0f}")
    if after["trimaran_sequences_running"] or after["trimaran_sequences_waiting"]:
        findings.failures.append(f"sequences are still there {SETTLE_SECONDS} s after the last request")
    if not findings.checked_answers:
        findings.failures.append("no answer was compared with the one given alone")
    findings.growth = fitted_growth(findings.resident, warm_up=findings.seconds / 4)
    if findings.growth is not None and findings.seconds >= JUDGE_SECONDS and findings.growth > GROWTH_LIMIT:
        findings.failures.append(f"memory rises: {findings.growth / 2**20:+.1f} MiB after warm-up")


def fitted_growth(samples: Sequence[tuple[float, int]], warm_up: float) -> float | None:
    """Rise, from ``warm_up`` seconds on, of the straight line through ``samples`` (seconds, bytes); None: too few."""
    late = [(at, size) for at, size in samples if at >= warm_up]
    if len(late) < 4:
        return None
    at, size = np.asarray(late, np.float64).T
    return float(np.polyfit(at, size, 1)[0] * (at[-1] - at[0]))
