"""Which worker of a pool gets a request: workers that can take it, a score for each, the best one. Pure functions.

A worker's load is an estimate in tokens: of prompts that it has yet to compute, or of contexts that it holds while it
decodes. What it has cached of a prompt is no work. Sessions stay where they are unless that costs much.
"""

from collections.abc import Sequence
from dataclasses import dataclass

SESSION_BONUS = 0.25  # of the largest score: a quarter of the capacity more load is accepted to stay


@dataclass(frozen=True)
class WorkerLoad:
    """A worker as far as one request is concerned."""

    up: bool
    requests: int  # that it has
    most_requests: int
    tokens: int  # of load, estimated
    most_tokens: int
    cached: int = 0  # leading tokens of the request that it has already
    session: bool = False  # it had the request before this one of the same session


def fits(worker: WorkerLoad, tokens: int) -> bool:
    """Whether a worker may get a request of so many tokens now; alone, any request may run."""
    if not worker.up or worker.requests >= worker.most_requests:
        return False
    return worker.requests == 0 or worker.tokens + tokens - worker.cached <= worker.most_tokens


def score(worker: WorkerLoad, tokens: int) -> float:
    """From 0 to 1, the larger the better."""
    load = (worker.tokens + max(0, tokens - worker.cached)) / worker.most_tokens
    return (1 / (1 + load) + SESSION_BONUS * worker.session) / (1 + SESSION_BONUS)


def pick(workers: Sequence[WorkerLoad], tokens: int) -> int | None:
    """Index of the worker that gets a request of so many tokens; None while there is none that can take it."""
    able = [index for index, worker in enumerate(workers) if fits(worker, tokens)]
    return max(able, key=lambda index: score(workers[index], tokens), default=None)
