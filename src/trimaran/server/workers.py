"""The workers of a pool as the router sees them: the line to each, and an estimate of what each has to do."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trimaran.base.messages import Started
from trimaran.pools.affinity import KnownPages
from trimaran.pools.route import WorkerLoad, pick
from trimaran.server.engine import EngineLink

KNOWN_PAGES = 1 << 16  # of a pool, that the router remembers


@dataclass
class Worker:
    """One process. ``tokens`` are those of the requests that it has."""

    link: EngineLink
    started: Started
    most_requests: int
    most_tokens: int
    requests: dict[str, int] = field(default_factory=dict)  # tokens by transfer
    behind: set[str] = field(default_factory=set)  # transfers of these that give way: they are in the background

    @property
    def tokens(self) -> int:
        return sum(self.requests.values())


class Pool:
    """Workers of one role."""

    def __init__(self, role: str, workers: Sequence[Worker]) -> None:
        self.role = role
        self.workers = workers
        self._known = KnownPages(KNOWN_PAGES)

    def choose(self, tokens: int, keys: Sequence[bytes], last: int | None, *, background: bool = False) -> int | None:
        """The worker for a request of so many tokens, the pages of whose prompt are ``keys``; ``last`` is the one of
        its session's request before. None while there is none that can take it.

        Only to one in the ``background`` is what is in the background a load.
        """
        return pick([self._load(number, keys, last, background) for number in range(len(self.workers))], tokens)

    def take(self, worker: int, transfer: str, tokens: int, *, background: bool = False) -> None:
        """The worker gets a request of so many tokens."""
        self.workers[worker].requests[transfer] = tokens
        if background:
            self.workers[worker].behind.add(transfer)

    def give_back(self, worker: int, transfer: str) -> None:
        """The worker has done with it; idempotent."""
        self.workers[worker].requests.pop(transfer, None)
        self.workers[worker].behind.discard(transfer)

    def remember(self, worker: int, keys: Sequence[bytes]) -> None:
        """The worker has the pages ``keys`` in its cache now."""
        self._known.add(keys, worker)

    def forget(self, worker: int) -> None:
        """The worker's process has ended."""
        self._known.forget(worker)

    def name_of(self, worker: int) -> str:
        return f"{self.role} worker {worker}"

    def worth_waiting(self) -> bool:
        """Whether there is a worker that may take requests, now or when it has been started anew."""
        return any(worker.link.up or worker.link.returning for worker in self.workers)

    def trouble(self) -> str | None:
        """Why no worker can do anything, or ``None``."""
        troubles = [worker.link.trouble() for worker in self.workers]
        if None in troubles:
            return None
        return f"the {self.role} pool has no worker: {troubles[0]}"

    def _load(self, number: int, keys: Sequence[bytes], last: int | None, background: bool) -> WorkerLoad:
        worker = self.workers[number]
        ignored = frozenset[str]() if background else worker.behind
        load = [tokens for transfer, tokens in worker.requests.items() if transfer not in ignored]
        return WorkerLoad(
            up=worker.link.trouble() is None,
            requests=len(load),
            most_requests=worker.most_requests,
            tokens=sum(load),
            most_tokens=worker.most_tokens,
            cached=self._known.leading(keys, number) * worker.started.page_size,
            session=number == last,
        )
