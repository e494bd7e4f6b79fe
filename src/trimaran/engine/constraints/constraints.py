"""What constrains the requests of one engine: made ready on a thread, followed and masked on the engine's."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from trimaran.base.errors import ConstraintError, RequestError, TrimaranError, UnsupportedError
from trimaran.base.grammar import Grammar
from trimaran.engine.constraints.cache import GrammarCache
from trimaran.engine.constraints.custom import CustomConstraints, Make
from trimaran.engine.constraints.matcher import Kind, Matcher, UInt32
from trimaran.engine.constraints.protocol import Vocabulary
from trimaran.engine.constraints.tokens import TokenTable

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from trimaran.engine.constraints.grammars import Grammars

log = logging.getLogger(__name__)

READY_SECONDS = 10.0  # until a request whose constraint is not ready is refused
_NAP_SECONDS = 0.002  # an engine with nothing else to do looks for messages as often


@dataclass(slots=True)
class ConstraintCounters:
    """Since the start; named as in ``Beat``."""

    constrained_requests: int = 0
    grammars_compiled: int = 0
    grammar_seconds: float = 0.0
    mask_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Coming:
    grammar: Grammar
    future: "Future[LLMatcher] | Future[Matcher]"
    until: float


class Constraints:
    """``prepare`` and ``arrived`` between steps, ``fill`` while the executor runs one, ``advance`` after it.

    Nothing of this is loaded before the first constrained request.
    """

    def __init__(self, vocab: int, rows: int, threads: int, table: Callable[[], TokenTable] | None) -> None:
        """``rows``: most that a step samples. ``table`` reads the vocabulary; None for an engine that has none."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="constraints")
        self._known_table: TokenTable | None = None
        self._read_table = table
        self._cache = GrammarCache(self._thread, self._table)
        self._custom = CustomConstraints(self._table)
        self._grammars: Grammars | None = None
        self._threads = max(1, threads // 2)  # the executor's own are at work meanwhile
        self._rows, self._words = rows, -(-vocab // 32)
        self._coming: dict[str, _Coming] = {}
        self._counters = ConstraintCounters()

    @property
    def waiting(self) -> bool:
        """Whether a request waits for its constraint."""
        return bool(self._coming)

    def add(self, name: str, make: Make) -> None:
        """Offers ``TokenConstraint``s under ``name``, beside those of installed packages: ``make`` is called when a
        request first names it."""
        self._custom.add(name, make)

    def vocabulary(self) -> Vocabulary:
        """What ``make`` gets; raises ``TrimaranError`` where there is none."""
        return self._custom.vocabulary()

    def counters(self) -> ConstraintCounters:
        counters = self._counters
        counters.grammars_compiled, counters.grammar_seconds = self._cache.compiled, self._cache.seconds
        return counters

    def prepare(self, request_id: str, grammar: Grammar, prompt: Sequence[int]) -> None:
        """Begins to make ready what ``request_id`` needs; ``arrived`` tells of it."""
        future: Future[LLMatcher] | Future[Matcher]
        if grammar.kind == "constraint":
            future = self._thread.submit(self._custom.start, grammar, prompt)
        else:
            future = self._cache.ask(grammar)
        self._coming[request_id] = _Coming(grammar, future, time.monotonic() + READY_SECONDS)

    def forget(self, request_id: str) -> None:
        """The request has ended; ids that do not wait are ignored."""
        self._coming.pop(request_id, None)

    def arrived(self) -> Iterator[tuple[str, Matcher | TrimaranError]]:
        """Requests that need not wait any more: each with its matcher, or with why it has none."""
        now = time.monotonic()
        for request_id, coming in list(self._coming.items()):
            if coming.future.done():
                del self._coming[request_id]
                yield request_id, self._outcome(coming)
            elif now >= coming.until:
                del self._coming[request_id]
                field = coming.grammar.field
                why = f"{field} was not compiled within {READY_SECONDS:g} s; make it simpler"
                yield request_id, RequestError(why, param=field, code="grammar_timeout")

    def nap(self) -> None:
        """Waits for the next to arrive, but not for long."""
        futures: list[Future[Any]] = [coming.future for coming in self._coming.values()]
        wait(futures, _NAP_SECONDS, FIRST_COMPLETED)

    def fill(self, matchers: Sequence[Matcher], drafts: Sequence[tuple[int, ...]]) -> UInt32:
        """A row of bits for each matcher, followed by one for each token of its draft, valid until the next call; those
        that have an error are not looked at."""
        begun = time.perf_counter()
        kinds = _by_kind(matchers)
        if len(kinds) == 1:
            masks = next(iter(kinds)).masks(matchers, drafts)
        else:
            ends = list(accumulate(1 + len(draft) for draft in drafts))
            masks = np.empty((ends[-1], self._words), np.uint32)
            for kind, places in kinds.items():
                rows = [row for place in places for row in range(ends[place] - 1 - len(drafts[place]), ends[place])]
                masks[rows] = kind.masks([matchers[place] for place in places], [drafts[place] for place in places])
        self._counters.mask_seconds += time.perf_counter() - begun
        return masks

    def forced(self, matcher: Matcher, most: int) -> tuple[int, ...]:
        """At most ``most`` tokens for text that must come next; empty where much may."""
        begun = time.perf_counter()
        forced = matcher.kind.forced(matcher, most)
        self._counters.mask_seconds += time.perf_counter() - begun
        return forced

    def accepted(self, matcher: Matcher, draft: tuple[int, ...]) -> tuple[int, ...]:
        """The beginning of ``draft`` that may come next."""
        begun = time.perf_counter()
        accepted = matcher.kind.accepted(matcher, draft) if draft else ()
        self._counters.mask_seconds += time.perf_counter() - begun
        return accepted

    def advance(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
        """Moves each matcher by a token that its mask has let through."""
        begun = time.perf_counter()
        for kind, rows in _by_kind(matchers).items():
            kind.advance([matchers[row] for row in rows], [tokens[row] for row in rows])
        self._counters.mask_seconds += time.perf_counter() - begun

    def close(self) -> None:
        """Compiles nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _outcome(self, coming: _Coming) -> Matcher | TrimaranError:
        error = coming.future.exception()
        if error is not None:
            if isinstance(error, TrimaranError):
                return error
            log.error("a grammar could not be compiled", exc_info=error)
            return ConstraintError(f"{coming.grammar.field} could not be compiled: {type(error).__name__}")
        found = coming.future.result()
        self._counters.constrained_requests += 1
        if isinstance(found, Matcher):
            return found
        if self._grammars is None:
            from trimaran.engine.constraints.grammars import Grammars  # loaded long since, by the thread

            self._grammars = Grammars(self._threads, self._rows, self._cache.tokenizer(), self._words)
        return self._grammars.start(found, coming.grammar.field)

    def _table(self) -> TokenTable:
        if self._read_table is None:
            raise UnsupportedError("this engine has no vocabulary, so it takes no grammars")
        if self._known_table is None:
            self._known_table = self._read_table()
        return self._known_table


def _by_kind(matchers: Sequence[Matcher]) -> dict[Kind, list[int]]:
    places: dict[Kind, list[int]] = {}
    for place, matcher in enumerate(matchers):
        places.setdefault(matcher.kind, []).append(place)
    return places
