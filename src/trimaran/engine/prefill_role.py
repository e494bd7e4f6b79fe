"""What a prefill engine does between two steps: sends what it has computed, and hears whether it was taken.

Exports happen on the engine's own thread, because pages stand still between two steps alone. Links have threads of
their own: when one has no room, its transfers wait and the engine goes on computing.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.base.errors import PeerError, TransferError, TrimaranError, UnsupportedError
from trimaran.base.failures import failure_of
from trimaran.base.messages import Admit, Beat, FromEngine, Handed, Prefill, Tokens
from trimaran.engine.prefilling import Handing, PrefillEngine
from trimaran.pools.hello import Hello
from trimaran.pools.key import PoolKey
from trimaran.pools.link import Link, Transport
from trimaran.pools.receiving import State
from trimaran.pools.sending import Sending
from trimaran.pools.ticket import Ticket, open_ticket
from trimaran.pools.transfer import Abort, Commit, Refused, Taken


@dataclass
class _Given:
    """A prompt on its way to another engine."""

    handing: Handing
    sending: Sending
    link: Link
    began: float
    computed: float | None = None  # when its first token was known
    answered: float | None = None  # when the other side's word came, perhaps while a step ran
    commit: Commit | None = None  # for which the link had no room yet


class PrefillRole:
    """Takes ``Prefill`` messages for a ``PrefillEngine``. Call ``turn`` between two steps."""

    def __init__(self, engine: PrefillEngine, hello: Hello, key: PoolKey, transports: Mapping[str, Transport]) -> None:
        """``transports`` are those that tickets may name."""
        self._engine = engine
        self._hello = hello
        self._key = key
        self.transports = transports
        self._links: dict[tuple[str, str, int], Link] = {}  # by transport, address and epoch of the receiver
        self._given: dict[str, _Given] = {}
        self._ended: list[FromEngine] = []
        self._untold: list[
            tuple[Link, Abort]
        ] = []  # for which a link had no room yet, or that has not met the other side

    def take(self, message: Admit | Prefill) -> None:
        """Begins; raises a ``TrimaranError`` when the ticket is not good, or the engine cannot take the prompt."""
        if not isinstance(message, Prefill):
            raise UnsupportedError("this engine computes prompts only, and was asked to decode")
        engine, request, now = self._engine, message.request, time.monotonic()
        ticket = open_ticket(message.ticket, self._key)
        if ticket.transfer != request.id:
            raise TransferError(f"the ticket is of transfer {ticket.transfer}, the request is {request.id}")
        sending = Sending(ticket, engine.executor.layout, engine.info.digest, request.prompt, now)
        link = self._link(ticket)
        handing = engine.prefill(request, tuple(group.first for group in ticket.groups), ticket.lease)
        self._given[request.id] = _Given(handing, sending, link, now)

    def cancel(self, request_id: str) -> None:
        """Nobody wants the answer any more: the other side hears of it, and the pages are free on return."""
        self._engine.cancel(request_id)
        if given := self._given.pop(request_id, None):
            self._tell(given, given.sending.abort("cancelled", "the request was cancelled"))
            if given.handing.token is not None:
                self._ended.append(Tokens(request_id, [], "cancelled"))
            self._engine.release(request_id)

    def distrust(self, source: str) -> None:
        """Nothing here is computed elsewhere."""

    def turn(self) -> list[FromEngine]:
        """Sends what can be sent; what is to be said of those that are over."""
        now = time.monotonic()
        for link in self._links.values():
            for arrival in link.receive():
                answer = arrival.message
                if isinstance(answer, Taken | Refused) and (given := self._given.get(answer.transfer)):
                    given.sending.answer(answer)
                    given.answered = arrival.at
                arrival.free()
        self._untold = [(link, abort) for link, abort in self._untold if not link.send(abort)]
        messages, self._ended = self._ended, []
        messages += [message for name in list(self._given) if (message := self._advance(name, now)) is not None]
        for place in [place for place, link in self._links.items() if link.failure is not None]:
            self._links.pop(place).close()
        return messages

    @property
    def pressing(self) -> bool:
        """Whether the next turn has something to say whatever happens."""
        return bool(self._ended)

    def filenos(self) -> list[int]:
        """What may be readable when there is something to do."""
        return [link.fileno() for link in self._links.values()]

    def told(self, beat: Beat) -> Beat:
        """What fails is said of each request."""
        return beat

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _advance(self, name: str, now: float) -> FromEngine | None:
        """Takes one transfer as far as it can go; its end, if that has come."""
        given = self._given[name]
        handing, sending, failure = given.handing, given.sending, given.link.failure
        if handing.token is not None and given.computed is None:
            given.computed = now
        if handing.lost:
            self._tell(given, sending.abort("engine", "the prompt was not computed"))
        elif failure is not None:
            sending.abort("link", str(failure))
        else:
            self._tell(given, sending.expire(now))
            try:
                self._send(given)
            except TrimaranError as error:
                self._tell(given, sending.abort("engine", str(error)))
        if not sending.over:
            return None
        del self._given[name]
        self._engine.release(name)
        if sending.failure is None:
            assert given.computed is not None
            assert given.answered is not None
            handoff = max(0.0, given.answered - given.computed)
            return Handed(name, sending.sent_bytes, given.computed - given.began, handoff)
        if handing.lost and handing.token is None:
            return None  # the engine has said why
        kind = PeerError if isinstance(failure, PeerError) else TransferError
        return failure_of(name, kind(f"the prompt did not reach the engine that decodes: {sending.failure}"))

    def _send(self, given: _Given) -> None:
        handing, sending, link = given.handing, given.sending, given.link
        prompt = sending.ticket.tokens
        computed = prompt if handing.token is not None else min(handing.sequence.computed, prompt - 1)
        while (batch := sending.due(computed, link.room())) is not None:
            end = batch.first + batch.count
            place = link.lend(batch.size)
            assert place is not None, "there was room"
            out = place.reshape(batch.count, -1)
            data = self._engine.export(handing, batch.group, batch.first, end, sending.page_format, out)
            sent = link.send(sending.frame(batch, data), data)
            assert sent, "there was room"
        if handing.token is not None and sending.state is State.OPEN and sending.sent:
            given.commit = sending.commit([handing.token], handing.sequence.cached or 0)
        if given.commit is not None and link.send(given.commit):
            given.commit = None

    def _tell(self, given: _Given, abort: Abort | None) -> None:
        if abort is not None and not given.link.send(abort):
            self._untold.append((given.link, abort))

    def _link(self, ticket: Ticket) -> Link:
        """To the receiver of a ticket, by the first transport of its choice that there is here."""
        for address in ticket.addresses:
            if transport := self.transports.get(address.transport):
                place = (address.transport, address.address, ticket.epoch)
                link = self._links.get(place)
                if link is None or link.failure is not None:
                    link = self._links[place] = transport.connect(address.address, self._hello)
                return link
        theirs, ours = ", ".join(each.transport for each in ticket.addresses), ", ".join(self.transports)
        raise PeerError(f"the engine that decodes offers {theirs or 'no transport'}, this one has {ours}")
