"""The receiver's side of one transfer, as a state machine: no I/O, and the time is told to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from trimaran.pools.ticket import Ticket
from trimaran.pools.transfer import (
    Abort,
    Answer,
    Cause,
    Commit,
    Digest,
    Frame,
    PageFrame,
    Refused,
    Taken,
    frame_checksum,
    shortened,
)

UInt8 = npt.NDArray[np.uint8]

Holds = Callable[[int, int, int], bool]  # (group, page, tag): the page is still what the ticket says


class State(Enum):
    """Of a transfer, on either side."""

    OPEN = "open"
    COMMITTED = "committed"  # the sender's alone: it waits for the answer
    TAKEN = "taken"
    FAILED = "failed"


@dataclass(frozen=True)
class Import:
    """Bytes uint8 ``[n, bytes of a page]`` for ``n`` of the receiver's pages, each a number and its tag: to be written
    before the next message is taken and the arrival that they came with is freed."""

    transfer: str
    group: int
    pages: tuple[tuple[int, int], ...]
    data: UInt8


@dataclass(frozen=True)
class Admit:
    """The sequence is complete: decode it from the commit's tokens on, and send the answer."""

    ticket: Ticket
    commit: Commit
    answer: Taken


@dataclass(frozen=True)
class Refusal:
    """To be answered. ``ended``: the transfer was open until now, and its pages are to be released."""

    answer: Refused
    ended: bool


@dataclass(frozen=True)
class Again:
    """A commit that was answered before: the same answer once more."""

    answer: Taken


Outcome = Import | Admit | Refusal | Again | None


class Receiving:
    """One transfer, from the ticket to its end. It is over at ``deadline`` at the latest, if ``expire`` is called."""

    def __init__(self, ticket: Ticket, page_bytes: Sequence[int], holds: Holds, now: float) -> None:
        """``page_bytes``: of a page of each cache group; ``now``: when the ticket was made."""
        assert len(page_bytes) == len(ticket.groups)
        self.ticket = ticket
        self.state = State.OPEN
        self.deadline = now + ticket.lease
        self.taken_bytes = 0
        self._page_bytes = tuple(page_bytes)
        self._holds = holds
        self._number = 0  # of the frame that is next
        self._pages = [0] * len(page_bytes)  # of each group, that have come
        self._digest = Digest()
        self._ticket_digest = ticket.digest
        self.answer: Answer | None = None  # how it ended

    def take(self, frame: Frame, data: UInt8 | None, now: float) -> Outcome:
        """What to do about a frame of this transfer; ``data`` uint8 ``[bytes]`` are its pages."""
        if frame.epoch != self.ticket.epoch:  # not meant for this process: says nothing of this transfer
            text = f"it is meant for epoch {frame.epoch:016x}; this process is {self.ticket.epoch:016x}"
            return Refusal(Refused(frame.transfer, frame.epoch, "epoch", text), ended=False)
        if self.answer is not None:
            return after_end(self.answer, frame)
        if (expired := self.expire(now)) is not None:
            return Refusal(expired, ended=True)
        match frame:
            case Abort():
                return self._fail(frame.cause, f"the sender gave up: {frame.text}")
            case PageFrame():
                return self._take_pages(frame, data)
            case Commit():
                return self._take_commit(frame)

    def abort(self, cause: Cause, text: str) -> Refused | None:
        """Fails an open transfer for a reason of the receiver's own: what to tell the sender. None: it has ended."""
        if self.state is not State.OPEN:
            return None
        return self._fail(cause, text).answer

    def expire(self, now: float) -> Refused | None:
        """Fails an open transfer whose time is over: what to tell the sender."""
        if self.state is not State.OPEN or now < self.deadline:
            return None
        return self._fail("expired", f"its lease of {self.ticket.lease:g} s is over").answer

    def _take_pages(self, frame: PageFrame, data: UInt8 | None) -> Outcome:
        if frame.number < self._number:
            return None
        if frame.number > self._number:
            return self._fail("order", f"frame {frame.number} came where {self._number} was next")
        if frame.group >= len(self._pages):
            return self._fail("range", f"cache group {frame.group} of {len(self._pages)}")
        group, done = self.ticket.groups[frame.group], self._pages[frame.group]
        due = group.first + done
        if frame.first != due or not 0 < frame.count <= len(group.pages) - done:
            what = f"pages {frame.first} to {frame.first + frame.count - 1} of group {frame.group}"
            return self._fail("range", f"{what} came where {due} to {group.end - 1} are due")
        size = frame.count * self._page_bytes[frame.group]
        if data is None or data.nbytes != size:
            found = 0 if data is None else data.nbytes
            return self._fail("range", f"frame {frame.number} has {found} bytes; {frame.count} pages are {size}")
        found = frame_checksum(
            frame.transfer, frame.epoch, frame.number, frame.group, frame.first, frame.count, data.data
        )
        if found != frame.checksum:
            return self._fail("checksum", f"frame {frame.number}: its checksum is {found:#x}, not {frame.checksum:#x}")
        places = slice(done, done + frame.count)
        if (lost := self._lost(frame.group, places)) is not None:
            return lost
        self._number += 1
        self._pages[frame.group] += frame.count
        self._digest.add(frame.checksum)
        self.taken_bytes += size
        pages = tuple(zip(group.pages[places], group.tags[places], strict=True))
        return Import(frame.transfer, frame.group, pages, data.reshape(frame.count, -1))

    def _take_commit(self, frame: Commit) -> Outcome:
        if frame.number != self._number:
            return self._fail("order", f"a commit of {frame.number} frames came after {self._number}")
        if frame.ticket != self._ticket_digest:
            return self._fail("ticket", "the commit is of another ticket than was given out")
        wanted = tuple(len(group.pages) for group in self.ticket.groups)
        if not frame.pages == tuple(self._pages) == wanted:
            sent, came = list(frame.pages), self._pages
            return self._fail("commit", f"{sent} pages were sent and {came} came of the {list(wanted)} of the ticket")
        if frame.digest != self._digest.value:
            return self._fail("commit", "the digest of all frames differs from that of those that came")
        for number in range(len(self._pages)):
            if (lost := self._lost(number, slice(None))) is not None:
                return lost
        self._number += 1
        self.state = State.TAKEN
        self.answer = taken = Taken(self.ticket.transfer, self.ticket.epoch)
        return Admit(self.ticket, frame, taken)

    def _lost(self, number: int, places: slice) -> Refusal | None:
        """A page of a group that is no longer what the ticket says fails the transfer."""
        group = self.ticket.groups[number]
        for page, tag in zip(group.pages[places], group.tags[places], strict=True):
            if not self._holds(number, page, tag):
                return self._fail("pages", f"page {page} of group {number} has changed hands since the ticket was made")
        return None

    def _fail(self, cause: Cause, text: str) -> Refusal:
        self.state = State.FAILED
        self.answer = refused = Refused(self.ticket.transfer, self.ticket.epoch, cause, shortened(text))
        return Refusal(refused, ended=True)


def after_end(answer: Answer, frame: Frame) -> Outcome:
    """What to do about a frame of a transfer that has ended in ``answer``."""
    if isinstance(answer, Refused):
        return Refusal(answer, ended=False)
    return Again(answer) if isinstance(frame, Commit) else None
