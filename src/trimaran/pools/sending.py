"""The sender's side of one transfer, as a state machine: no I/O, and the time is told to it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import PeerError, TransferError
from trimaran.base.formats import KVFormat
from trimaran.base.messages import Token
from trimaran.kernels.handoff import batch_pages, first_page_read
from trimaran.kernels.page_layout import PageLayout
from trimaran.pools.layout import check_layouts, layout_data, page_format_of
from trimaran.pools.receiving import State, UInt8
from trimaran.pools.ticket import Ticket, digest_of_tokens
from trimaran.pools.transfer import (
    Abort,
    Answer,
    Cause,
    Commit,
    Digest,
    PageFrame,
    Taken,
    frame_checksum,
    shortened,
)


@dataclass(frozen=True)
class Batch:
    """``count`` pages of a cache group that can be sent, from the sequence's page ``first`` on; ``size`` in bytes."""

    group: int
    first: int
    count: int
    size: int


class Sending:
    """One transfer, from the ticket to its end. It is over at ``deadline`` at the latest, if ``expire`` is called.

    ``due``, ``frame`` of what it gave, and so on until it gives None though everything is computed (``sent``); then
    ``commit``. Until the end the sequence's pages that the ticket asks for are to be held.
    """

    def __init__(self, ticket: Ticket, layout: PageLayout, model: str, prompt: npt.ArrayLike, now: float) -> None:
        """``layout`` and ``model`` are the sender's, ``prompt`` the token ids. Raises ``TransferError`` when the ticket
        is not for this prompt, model or kind of pages: nothing has been sent then."""
        check_ticket(ticket, layout, model, prompt)
        self.ticket = ticket
        self.page_format = KVFormat(page_format_of(ticket.layout))
        self.state = State.OPEN
        self.cause: Cause | None = None
        self.failure: str | None = None
        self.deadline = now + ticket.lease
        self.sent_bytes = 0
        self._layout = layout.converted(self.page_format)
        self._next = [group.first for group in ticket.groups]  # of each group the sequence's page that is next
        self._number = 0
        self._digest = Digest()

    def due(self, computed: int, room: int) -> Batch | None:
        """The next pages to export and send, now that the first ``computed`` tokens are in their pages and the link
        takes ``room`` bytes; None while there are none. A page is sent once it will not change any more: when it is
        full, or when the whole prompt is computed."""
        if self.state is not State.OPEN:
            return None
        whole = computed >= self.ticket.tokens
        for group, wanted in enumerate(self.ticket.groups):
            end = wanted.end if whole else min(wanted.end, computed // self._layout.page_size)
            size = self._layout.page_bytes(group)
            count = min(end - self._next[group], batch_pages(self._layout, group), room // size)
            if end > self._next[group]:
                return Batch(group, self._next[group], count, count * size) if count else None
        return None

    def frame(self, batch: Batch, data: UInt8) -> PageFrame:
        """The frame of the batch that ``due`` has just given, whose pages are ``data`` uint8 ``[count, bytes]``."""
        assert self.state is State.OPEN
        assert batch.first == self._next[batch.group]
        assert data.nbytes == batch.size
        place = (self.ticket.transfer, self.ticket.epoch, self._number, batch.group, batch.first, batch.count)
        frame = PageFrame(*place, frame_checksum(*place, data.data.cast("B")))
        self._next[batch.group] += batch.count
        self._number += 1
        self._digest.add(frame.checksum)
        self.sent_bytes += batch.size
        return frame

    @property
    def sent(self) -> bool:
        """Whether all pages of the ticket have gone."""
        return all(at == group.end for at, group in zip(self._next, self.ticket.groups, strict=True))

    def commit(self, tokens: list[Token], cached: int = 0) -> Commit:
        """The last frame: ``tokens`` are the first of the answer, at least one; ``cached`` tokens of the prompt did not
        have to be computed."""
        assert self.state is State.OPEN
        assert self.sent
        self.state = State.COMMITTED
        return Commit(
            transfer=self.ticket.transfer,
            epoch=self.ticket.epoch,
            number=self._number,
            pages=tuple(len(group.pages) for group in self.ticket.groups),
            digest=self._digest.value,
            ticket=self.ticket.digest,
            tokens=tokens,
            cached=cached,
        )

    def answer(self, answer: Answer) -> None:
        """What the receiver said. Of another transfer or epoch, or after the end: ignored."""
        if (answer.transfer, answer.epoch) != (self.ticket.transfer, self.ticket.epoch) or self.over:
            return
        if not isinstance(answer, Taken):
            self._fail(answer.cause, f"the receiver refused: {answer.text}")
        elif self.state is State.COMMITTED:
            self.state = State.TAKEN
        else:
            self._fail("order", "the receiver took what had not been committed")

    @property
    def over(self) -> bool:
        """Whether the pages can be released."""
        return self.state in (State.TAKEN, State.FAILED)

    def abort(self, cause: Cause, text: str) -> Abort | None:
        """Fails the transfer for a reason of the sender's own: what to tell the receiver; None: it is over."""
        if self.over:
            return None
        self._fail(cause, text)
        return Abort(self.ticket.transfer, self.ticket.epoch, cause, shortened(text))

    def expire(self, now: float) -> Abort | None:
        """Fails the transfer when its time is over: what to tell the receiver."""
        if now < self.deadline:
            return None
        return self.abort("expired", f"it did not end within {self.ticket.lease:g} s")

    def _fail(self, cause: Cause, text: str) -> None:
        self.state = State.FAILED
        self.cause, self.failure = cause, text


def check_ticket(ticket: Ticket, layout: PageLayout, model: str, prompt: npt.ArrayLike) -> None:
    """Raises ``TransferError`` when pages of this prompt, under this model, are not what the ticket asks for."""
    if ticket.model != model:
        raise TransferError(f"the ticket is of model {ticket.model}; this engine has {model}")
    try:
        check_layouts(layout_data(layout), ticket.layout)
    except PeerError as error:
        raise TransferError(str(error)) from None
    if ticket.tokens != np.size(prompt) or ticket.token_digest != digest_of_tokens(prompt):
        raise TransferError(f"the ticket is of another prompt, of {ticket.tokens} tokens")
    if len(ticket.groups) != len(layout.groups):
        raise TransferError(
            f"the ticket has pages of {len(ticket.groups)} cache groups, this model {len(layout.groups)}"
        )
    end = -(-ticket.tokens // layout.page_size)
    for number, (group, wanted) in enumerate(zip(layout.groups, ticket.groups, strict=True)):
        first = first_page_read(group.window, ticket.tokens, layout.page_size)
        if wanted.end != end or wanted.first < first:
            raise TransferError(
                f"the ticket asks for pages {wanted.first} to {wanted.end - 1} of group {number}; "
                f"what is read of {ticket.tokens} tokens are {first} to {end - 1}"
            )
