"""Starts the workers of two pools, each a process with its own threads, memory and precisions."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from trimaran.base import errors
from trimaran.base.messages import Started
from trimaran.host.process import EngineProcess
from trimaran.server.options import ServeOptions

if TYPE_CHECKING:
    from trimaran.server.engine_metrics import EngineMetrics
    from trimaran.server.metrics import Metrics
    from trimaran.server.restarts import RestartPolicy
    from trimaran.server.router import Router
    from trimaran.text.encoder_tokenizer import EncoderTokenizer
    from trimaran.text.tokenizer import Tokenizer

PREFILL_STEPS = 8  # of prompts, that a prefill worker has at most, unless it has one alone: more could only wait there


RELAY = "trimaran.pools.relay"


@dataclass(frozen=True)
class WorkerCommand:
    """What is started for a worker: an engine, or with ``RELAY`` a connection to one on another host."""

    config: Mapping[str, Any]
    module: str = "trimaran.engine.worker"

    def policy(self, options: ServeOptions) -> "RestartPolicy":
        """A host that cannot be reached says nothing of what will be: it is tried again until somebody stops that."""
        from trimaran.server.restarts import RestartPolicy

        limit = None if self.module == RELAY else options.restart_limit
        return RestartPolicy(options.restart, limit, options.restart_stable)

    def process(self, name: str) -> EngineProcess:
        """One that has not been started."""
        return EngineProcess(self.config, module=self.module, name=name)


@dataclass
class _Member:
    """A worker that is being started."""

    role: str
    number: int
    command: WorkerCommand
    process: EngineProcess
    started: Started | None = None
    metrics: "EngineMetrics | None" = None

    @property
    def name(self) -> str:
        return f"{self.role} worker {self.number}"


class TwoPools:
    """Workers that prefill and workers that decode; see ``Launch``."""

    def __init__(self, prefill: list[WorkerCommand], decode: list[WorkerCommand]) -> None:
        self._members = [
            _Member(role, number, command, command.process(f"{role}-{number}"))
            for role, commands in (("prefill", prefill), ("decode", decode))
            for number, command in enumerate(commands)
        ]
        self.router: Router | None = None

    async def start(self) -> Started:
        tasks = [asyncio.create_task(self._start(member)) for member in self._members]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.stop()
            raise
        if wrong := _mismatch([member for member in self._members if member.started is not None]):
            await self.stop()
            raise errors.ConfigError(wrong)
        if any(started.embedding_width is not None for started in self._of("prefill")):
            await self.stop()
            raise errors.ConfigError("--pools is for models that make text, and this one makes vectors of it")
        return _together(self._of("prefill"), self._of("decode"))

    def connect(self, options: ServeOptions, metrics: "Metrics") -> "Router":
        from trimaran.server.engine import EngineLink
        from trimaran.server.pool_metrics import PoolMetrics
        from trimaran.server.router import Deadlines, Router
        from trimaran.server.workers import Pool, Worker

        shown = PoolMetrics(metrics.registry)
        pools: dict[str, list[Worker]] = {"prefill": [], "decode": []}
        for member in self._members:
            started = member.started
            assert started is not None, "not started"
            member.metrics = shown.engine(member.role, member.number)
            link = EngineLink(
                member.process,
                partial(member.command.process, f"{member.role}-{member.number}"),
                member.metrics,
                options.timeout_engine,
                member.command.policy(options),
                name=member.name,
            )
            most = PREFILL_STEPS * options.max_num_batched_tokens if member.role == "prefill" else _places(started)
            pools[member.role].append(Worker(link, started, options.max_num_seqs, most))
        prefill, decode = (Pool(role, workers) for role, workers in pools.items())
        deadlines = Deadlines(options.timeout_queue, options.timeout_handoff, options.timeout_handoff)
        self.router = Router(prefill, decode, deadlines, shown)
        return self.router

    async def check(self, options: ServeOptions, tokenizer: "Tokenizer | EncoderTokenizer") -> None:
        from trimaran.server.self_test import check_pools
        from trimaran.text.tokenizer import Tokenizer

        assert self.router is not None, "not connected"
        assert isinstance(tokenizer, Tokenizer), "not a model of vectors"
        if options.pool_self_test:
            await check_pools(self.router, tokenizer)

    def took(self, seconds: float) -> None:
        for member in self._members:
            assert member.started is not None, "not started"
            assert member.metrics is not None, "not connected"
            member.metrics.start_took(member.started.phases, seconds)

    async def stop(self) -> None:
        running = [member.process for member in self._members if member.started is not None]
        await asyncio.gather(*(process.stop(0.0) for process in running))

    async def _start(self, member: _Member) -> None:
        try:
            member.started = await member.process.start()
        except errors.ConfigError as error:
            raise errors.ConfigError(f"{member.name}: {error}") from error

    def _of(self, role: str) -> list[Started]:
        return [member.started for member in self._members if member.role == role and member.started is not None]


def _mismatch(members: list[_Member]) -> str | None:
    """Why these workers cannot serve one model; those on other hosts may have been started with anything."""
    first = members[0]
    for member in members[1:]:
        for what in ("digest", "page_size"):
            mine, theirs = getattr(first.started, what), getattr(member.started, what)
            if mine != theirs:
                return f"{first.name} and {member.name} differ in {what.replace('_', ' ')}: {mine} and {theirs}"
    return None


def _together(prefill: list[Started], decode: list[Started]) -> Started:
    """What clients see of both pools: their precisions beside each other."""
    one, all_of_them = decode[0], prefill + decode
    return structs.replace(
        one,
        context=min(each.context for each in all_of_them),
        weight_format=_both(prefill[0].weight_format, one.weight_format),
        kv_format=_both(prefill[0].kv_format, one.kv_format),
        threads=sum(each.threads for each in all_of_them),
        weight_bytes=sum(each.weight_bytes for each in all_of_them),
        kv_bytes=sum(each.kv_bytes for each in all_of_them),
    )


def _both(prefill: str, decode: str) -> str:
    return decode if prefill == decode else f"prefill {prefill}, decode {decode}"


def _places(started: Started) -> int:
    """Tokens that a worker's pages have room for, in the group that is shortest of them; windows do not count."""
    totals = [pages.total for pages in started.pages if pages.window is None] or [
        pages.total for pages in started.pages
    ]
    return min(totals) * started.page_size
