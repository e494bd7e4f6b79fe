"""The engine of a decode pool: takes pages for prompts that other engines compute, and goes on from there.

Greedy output must be a function of the request alone, so where the two engines differ in precision

* a prompt's pages are found by prefix only by requests whose prompts the same kind of engine computes,
* pages that steps of this engine have filled are found by nobody,
* a sequence that gives up its pages is parked, never computed again (``parking.py``).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trimaran.base.errors import CanaryError, TrimaranError
from trimaran.base.failures import failure_of
from trimaran.base.messages import FromEngine, Submit, Token
from trimaran.engine.engine import Engine
from trimaran.engine.pages import PageRef
from trimaran.engine.request import Request
from trimaran.engine.sequence import Sequence

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Expected:
    """A sequence that has pages and waits for what they are to hold: of each cache group ``refs`` are pages number
    ``firsts`` and following of the sequence."""

    sequence: Sequence
    key: int  # of its draws
    firsts: tuple[int, ...]
    refs: tuple[list[PageRef], ...]
    seconds: float  # for them to come


class DecodeEngine(Engine):
    """An engine that also takes requests whose prompts are computed elsewhere: ``admit``, then ``placed`` says which
    pages the caller is to fill (``handover.take``, under a lease of the request's id), then ``adopt``."""

    placed: Callable[[Expected], FromEngine]  # called when such a request has got its pages: what to say of it

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As an ``Engine``."""
        super().__init__(*args, **kwargs)
        self._seconds: dict[str, float] = {}  # of requests that have been admitted and not adopted

    def admit(self, message: Submit, origin: str, seconds: float, source: str) -> None:
        """Queues a request; ``placed`` is called once it has pages for its prompt, as far as they are not cached, which
        must be filled within ``seconds`` from then on.

        ``origin`` is the ``identity`` of the engine that computes the prompt, which may be that of many; ``source`` is
        what it is called itself. Raises what ``submit`` does.
        """
        request = self._reception.take(message, self._requests)
        sequence = request.sequence
        sequence.known = sequence.prompt_length
        sequence.sources = frozenset([source])
        if origin != self.info.identity:
            sequence.salt = f"{origin}\0{sequence.salt}"
            sequence.shareable = sequence.prompt_length
        self._add(request)
        self._seconds[message.id] = seconds

    def expects(self, request_id: str) -> bool:
        """Whether the request has pages that are not filled yet."""
        request = self._requests.get(request_id)
        if request is None or request.sequence.slot is None:
            return False
        return request.sequence.computed < request.sequence.known

    def adopt(self, request_id: str, token: Token, cached: int) -> None:
        """All pages of an expected sequence have been filled, and this is its first token: from here on it runs like
        any other. ``cached`` prompt tokens came from a prefix cache. Between two steps."""
        assert self.expects(request_id)
        request = self._requests[request_id]
        sequence = request.sequence
        self._forget(request_id)
        sequence.cached = cached
        sequence.advance(sequence.known - sequence.computed)
        self.cache.settle(sequence)
        self._scheduler.arrived(sequence)
        self.choosing.note(request, token.id)
        if request.matcher is not None and request.matcher.error is not None:
            self._fail(request, request.matcher.error)
        elif (message := self._accept(request, token)) is not None:
            self._outbox.append(message)
        self._stirred = True

    def fail(self, request_id: str, error: TrimaranError) -> None:
        """Ends a request whose prompt will not come. Unknown ids are ignored. Between two steps."""
        if request := self._requests.get(request_id):
            self._drop(request)
            self._outbox.append(failure_of(request_id, error))

    def distrust(self, source: str) -> None:
        """What the worker called ``source`` has computed so far may be wrong: requests that read something of it end
        with ``CanaryError``, and nobody finds it any more. Between two steps."""
        doubtful = [request for request in self._requests.values() if source in request.sequence.sources]
        dropped = self.cache.prefix.distrust(source)
        for request in doubtful:
            self._fail(request, CanaryError(f"{source}, which computed the prompt, is not trusted any more"))
        self._counters.pages_distrusted += dropped
        log.error("%s is not trusted any more: ended=%d dropped_pages=%d", source, len(doubtful), dropped)

    def _drop(self, request: Request) -> None:
        super()._drop(request)
        self._forget(request.sequence.id)

    def _forget(self, request_id: str) -> None:
        if self._seconds.pop(request_id, None) is not None:
            self.leases.close(request_id)

    def _expect(self, sequence: Sequence) -> None:
        cached = sequence.computed // self.executor.page_size
        firsts = tuple(max(held.first, cached) for held in sequence.pages)
        refs = tuple(held.refs[first - held.first :] for held, first in zip(sequence.pages, firsts, strict=True))
        seconds = self._seconds[sequence.id]
        self.leases.open(sequence.id, refs, seconds)
        self._outbox.append(self.placed(Expected(sequence, self._requests[sequence.id].key, firsts, refs, seconds)))
