"""A closed loop in this process: so many requests are in flight until all are done, and what that was like."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trimaran.base.errors import TrimaranError
from trimaran.base.messages import Failed, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.engine.engine import Engine


@dataclass(frozen=True)
class Job:
    """A prompt, and how many tokens it is continued by, greedily; it is not submitted before ``due`` seconds."""

    prompt: list[int]
    output: int
    due: float = 0.0


@dataclass
class Flow:
    """What happened. Times are in seconds."""

    seconds: float = 0.0
    tokens: int = 0  # generated
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of these, found in the prefix cache
    gaps: list[float] = field(default_factory=list)  # between two tokens of one request, of all
    waits: list[float] = field(default_factory=list)  # from submission to the first token, one a request
    most_running: int = 0  # at once
    most_waiting: int = 0
    most_pages: int = 0  # in use, of all cache groups; pages that are only kept for their prefix do not count
    outputs: list[list[int]] = field(default_factory=list)  # by job
    watched: list[float] = field(default_factory=list)  # what ``watch`` said after each step


def run_closed(engine: Engine, jobs: Sequence[Job], concurrency: int, watch: Callable[[], float] | None = None) -> Flow:
    """Submits ``jobs`` in order, ``concurrency`` at a time; the next one goes in when it is due and one has ended.

    Nothing else may use the engine meanwhile. Raises ``TrimaranError`` when a request fails.
    """
    flow = Flow(outputs=[[] for _ in jobs])
    before = engine.stats()
    submitted: dict[int, float] = {}
    last: dict[int, float] = {}
    place = 0
    began = time.perf_counter()
    while place < len(jobs) or submitted:
        if not submitted:
            time.sleep(max(0.0, jobs[place].due - (time.perf_counter() - began)))
        while place < len(jobs) and len(submitted) < concurrency and jobs[place].due <= time.perf_counter() - began:
            sampling = SamplingParams(temperature=0.0, max_tokens=jobs[place].output, ignore_eos=True)
            submitted[place] = time.perf_counter()
            engine.submit(Submit(str(place), jobs[place].prompt, sampling))
            place += 1
        messages = engine.step()
        if watch is not None:
            flow.watched.append(watch())
        now = time.perf_counter()
        for message in messages:
            if isinstance(message, Failed):
                raise TrimaranError(f"the engine failed a request: {message.kind}: {message.message}")
            if not isinstance(message, Tokens):
                continue
            job = int(message.id)
            if message.tokens:
                flow.tokens += len(message.tokens)
                flow.outputs[job] += [token.id for token in message.tokens]
                if job in last:
                    flow.gaps.append(now - last[job])
                else:
                    flow.waits.append(now - submitted[job])
                last[job] = now
            if message.finish is not None:
                del submitted[job]
        stats = engine.stats()
        flow.most_running = max(flow.most_running, stats.running)
        flow.most_waiting = max(flow.most_waiting, stats.waiting)
        used = sum(pages.total - pages.free - pages.cached for pages in stats.pages)
        flow.most_pages = max(flow.most_pages, used)
    flow.seconds = time.perf_counter() - began
    after = engine.stats()
    flow.preemptions = after.preemptions - before.preemptions
    flow.prompt_tokens = after.prompt_tokens - before.prompt_tokens
    flow.cached_tokens = after.cached_tokens - before.cached_tokens
    return flow
