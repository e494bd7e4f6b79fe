"""One engine against a prefill and a decode pool on the same cores, under loads in which prompts disturb answers.

Every contender is a ``trimaran serve`` of its own, one after the other. Prompts are random, so that no prefix cache
helps anybody.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from trimaran.bench.arrivals import Job
from trimaran.bench.exchange import Timing
from trimaran.bench.load import Target, load
from trimaran.bench.served import Served

QUIET = ("--canary-interval", "0")
SETTLE_SECONDS = 0.5  # after a load, for what workers count to have come


@dataclass(frozen=True)
class Contender:
    """A way of serving: its name, and its flags of ``trimaran serve``."""

    name: str
    flags: tuple[str, ...]


def contenders(threads: int, steps: Sequence[int], pool_flags: Sequence[str]) -> list[Contender]:
    """One engine with its default steps and with others, and two pools that share the same ``threads``."""
    one, half = ("--threads", str(threads)), str(max(1, threads // 2))
    found = [Contender("one engine", one)]
    found += [
        Contender(f"one engine, steps of {rows}", (*one, "--max-num-batched-tokens", str(rows))) for rows in steps
    ]
    pools = ("--pools", "prefill=1,decode=1", "--prefill-threads", half, "--decode-threads", half)
    return [*found, Contender("pools", (*pools, *pool_flags))]


@dataclass(frozen=True)
class Scene:
    """A load. ``streams`` begin at once, and the gaps in them count; ``others`` come when they are due, and their waits
    count. Without streams the others' gaps do."""

    name: str
    about: str
    streams: Sequence[Job]
    others: Sequence[Job]


def burst(streams: int, stream: Job, prompts: int, prompt: Job, every: float) -> Scene:
    """Long prompts, one in ``every`` seconds, among running answers."""
    about = (
        f"{streams} streams of {stream.prompt} + {stream.output} tokens; then {prompts} prompts of {prompt.prompt} + "
        f"{prompt.output}, one in {every:g} s"
    )
    later = [replace(prompt, due=every * (number + 1)) for number in range(prompts)]
    return Scene("burst", about, [stream] * streams, later)


def replay(name: str, jobs: Sequence[Job], length_scale: float, longest: int) -> Scene:
    """A trace, its lengths scaled and cut to ``longest`` tokens."""

    def scaled(tokens: int) -> int:
        return max(1, min(longest, round(tokens * length_scale)))

    shorter = [replace(job, prompt=scaled(job.prompt), output=scaled(job.output)) for job in jobs]
    seconds = max(job.due for job in shorter)
    mean = sum(job.prompt for job in shorter) / len(shorter)
    about = f"{len(jobs)} requests of {name} in {seconds:.0f} s, prompts of {mean:.0f} tokens on average"
    return Scene("trace", about, [], shorter)


@dataclass
class Run:
    """What one contender did in one scene, all rounds together."""

    contender: str
    streams: list[Timing] = field(default_factory=list)
    others: list[Timing] = field(default_factory=list)
    seconds: float = 0.0  # from the first sending to the last end, of all rounds
    metrics: dict[str, float] = field(default_factory=dict)  # how much each has grown


async def play(
    model: str,
    contender: Contender,
    scenes: Sequence[Scene],
    rounds: int,
    vocab: int,
    progress: Callable[[str], None],
) -> list[Run]:
    """Starts ``contender`` and plays every scene ``rounds`` times; a run for each scene. Raises ``TrimaranError`` when
    the server does not start or answer."""
    runs = [Run(contender.name) for _ in scenes]
    progress(f"{contender.name}: starting")
    async with Served(model, [*QUIET, *contender.flags]) as server:
        target = Target(server.url, ignore_eos=True, vocab=vocab)
        await load(target, [Job(64, 4)], concurrency=1, warm_up=1)
        await asyncio.sleep(SETTLE_SECONDS)
        for number in range(rounds):
            for scene, run in zip(scenes, runs, strict=True):
                progress(f"{contender.name}: {scene.name}, round {number + 1} of {rounds}")
                before = await server.metrics()
                streams, others = await asyncio.gather(load(target, scene.streams), load(target, scene.others))
                await asyncio.sleep(SETTLE_SECONDS)
                after = await server.metrics()
                timings = streams.timings + others.timings
                run.streams += streams.timings
                run.others += others.timings
                run.seconds += max(each.ended for each in timings) - min(each.sent for each in timings)
                run.metrics = {name: run.metrics.get(name, 0.0) + after[name] - before.get(name, 0.0) for name in after}
    return runs
