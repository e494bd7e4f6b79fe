"""What a decode engine does between two steps: fills pages that have come, and takes over sequences that are complete.

A turn imports a bounded number of bytes, so that a long prompt that comes in does not hold up those that decode.
"""

import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count

from msgspec import structs

from trimaran.base.errors import TransferError, TrimaranError, UnsupportedError
from trimaran.base.messages import Admit, Admitted, Beat, FromEngine, Prefill
from trimaran.engine.decoding import DecodeEngine, Expected
from trimaran.engine.pages import PageRef
from trimaran.kernels.page_tags import owner_number
from trimaran.pools.arrivals import Arrivals
from trimaran.pools.key import PoolKey
from trimaran.pools.layout import layout_data
from trimaran.pools.link import Arrival, Link, Listener
from trimaran.pools.receiving import Admit as Complete
from trimaran.pools.receiving import Again, Import, Refusal
from trimaran.pools.ticket import TICKET_VERSION, Address, Ticket, TicketPages, digest_of_tokens
from trimaran.pools.transfer import Abort, Answer, Cause, Commit, PageFrame

IMPORT_BYTES = 4 << 20  # of pages that one turn fills, at least one frame


@dataclass
class _Incoming:
    """A link, and what has come over it and has not been taken."""

    link: Link
    waiting: deque[Arrival] = field(default_factory=deque)

    @property
    def over(self) -> bool:
        return self.link.failure is not None and not self.waiting


class DecodeRole:
    """Takes ``Admit`` messages for a ``DecodeEngine``. Call ``turn`` between two steps."""

    def __init__(
        self, engine: DecodeEngine, epoch: int, key: PoolKey, listeners: Sequence[tuple[str, Listener]]
    ) -> None:
        """``epoch`` is this process's; ``listeners``, by transport, the best first, are where senders connect."""
        self._engine = engine
        self._epoch = epoch
        self._key = key
        self._listeners = listeners
        layout = engine.executor.layout
        self._layout = layout_data(layout)
        pages = [layout.page_bytes(group) for group in range(len(layout.groups))]
        self._arrivals = Arrivals(epoch, pages, self._holds, limit=engine.slots)
        self._links: dict[int, _Incoming] = {}
        self._numbers = count()
        engine.placed = self._admitted

    def take(self, message: Admit | Prefill) -> None:
        """Begins; raises what ``DecodeEngine.admit`` does."""
        if not isinstance(message, Admit):
            raise UnsupportedError("this engine decodes only, and was asked to compute a prompt for another")
        self._engine.admit(message.request, message.origin, message.seconds, message.source)

    def cancel(self, request_id: str) -> None:
        """The request was cancelled: the sender need not go on."""
        self._engine.cancel(request_id)
        self._give_up(request_id, "cancelled", "the request was cancelled")

    def distrust(self, source: str) -> None:
        """See ``DecodeEngine.distrust``; what comes of such prompts yet finds nobody."""
        self._engine.distrust(source)

    def turn(self) -> list[FromEngine]:
        """Takes in what has come. What is to be said of it the engine says with its next step."""
        now = time.monotonic()
        for _, listener in self._listeners:
            self._links |= {next(self._numbers): _Incoming(link) for link in listener.accept()}
        room = IMPORT_BYTES
        for number, incoming in self._links.items():
            incoming.waiting += incoming.link.receive()
            while incoming.waiting and room > 0:
                arrival = incoming.waiting.popleft()
                room -= 0 if arrival.data is None else arrival.data.nbytes
                try:
                    self._take(number, arrival, now)
                finally:
                    arrival.free()
        for refused, over in self._arrivals.expire(now):
            self._fail(refused.transfer, refused.text)
            self._answer(over, refused)
        for number in [number for number, incoming in self._links.items() if incoming.over]:
            link = self._links.pop(number).link
            for refused in self._arrivals.broke(number, str(link.failure)):
                self._fail(refused.transfer, refused.text)
            link.close()
        return []

    @property
    def pressing(self) -> bool:
        """Whether there is more to take in than the last turn took."""
        return any(incoming.waiting for incoming in self._links.values())

    def filenos(self) -> list[int]:
        """What may be readable when there is something to do."""
        links = [incoming.link.fileno() for incoming in self._links.values()]
        return links + [listener.fileno() for _, listener in self._listeners]

    def told(self, beat: Beat) -> Beat:
        """The engine's counters with those of transfers."""
        rejected = sum(listener.rejected for _, listener in self._listeners)
        return structs.replace(beat, links_rejected=rejected, transfers_failed=dict(self._arrivals.failed))

    def close(self) -> None:
        for incoming in self._links.values():
            incoming.link.close()
        for _, listener in self._listeners:
            listener.close()

    def _admitted(self, expected: Expected) -> Admitted:
        """Called by the engine once a request has pages."""
        sequence = expected.sequence
        ticket = Ticket(
            version=TICKET_VERSION,
            transfer=sequence.id,
            epoch=self._epoch,
            model=self._engine.info.digest,
            layout=self._layout,
            tokens=sequence.prompt_length,
            token_digest=digest_of_tokens(sequence.tokens),
            groups=[
                TicketPages(first, [ref.page for ref in refs], [ref.tag for ref in refs])
                for first, refs in zip(expected.firsts, expected.refs, strict=True)
            ],
            lease=expected.seconds,
            addresses=[Address(name, listener.address) for name, listener in self._listeners],
        )
        self._arrivals.expect(ticket, time.monotonic())
        seed = expected.key if expected.key < 1 << 63 else expected.key - (1 << 64)
        return Admitted(sequence.id, ticket.seal(self._key), seed)

    def _take(self, number: int, arrival: Arrival, now: float) -> None:
        frame = arrival.message
        if not isinstance(frame, PageFrame | Commit | Abort):
            return  # an answer: nobody here has asked
        match self._arrivals.take(frame, arrival.data, now, number):
            case Import(transfer=transfer, group=group, pages=pages, data=data):
                refs = [PageRef(*page) for page in pages]
                try:
                    self._engine.handover.take(transfer, group, refs, owner_number(transfer), data)
                except TrimaranError as error:
                    self._give_up(transfer, "pages", str(error))
                    self._fail(transfer, str(error))
            case Complete(commit=commit, answer=taken):
                self._engine.adopt(commit.transfer, commit.tokens[0], commit.cached)
                self._answer(number, taken)
            case Refusal(answer=refused, ended=ended):
                if ended:
                    self._fail(refused.transfer, refused.text)
                self._answer(number, refused)
            case Again(answer=taken):
                self._answer(number, taken)

    def _give_up(self, transfer: str, cause: Cause, text: str) -> None:
        number = self._arrivals.link_of(transfer)
        if (refused := self._arrivals.abort(transfer, cause, text)) is not None:
            self._answer(number, refused)

    def _answer(self, number: Hashable | None, answer: Answer) -> None:
        """Best effort: who does not hear it finds out by the lease."""
        if isinstance(number, int) and (incoming := self._links.get(number)):
            incoming.link.send(answer)

    def _fail(self, transfer: str, text: str) -> None:
        self._engine.fail(transfer, TransferError(f"the prompt did not come from the engine that computes it: {text}"))

    def _holds(self, group: int, page: int, tag: int) -> bool:
        return self._engine.cache.groups[group].pool.held(PageRef(page, tag))
