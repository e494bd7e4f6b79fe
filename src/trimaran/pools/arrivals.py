"""All transfers that a receiver expects: which of them a message is for, from whom, and when they are over."""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence

from trimaran.base.errors import TransferError
from trimaran.pools.receiving import Holds, Outcome, Receiving, Refusal, UInt8, after_end
from trimaran.pools.ticket import Ticket
from trimaran.pools.transfer import Answer, Cause, Frame, Refused, shortened

REMEMBERED = 4096  # transfers that have ended: late messages of theirs get the answer they got before


class Arrivals:
    """Transfers by id; no I/O. ``from_`` in what follows is whatever identifies a link; a transfer is of the link that
    its first frame came over."""

    def __init__(self, epoch: int, page_bytes: Sequence[int], holds: Holds, limit: int) -> None:
        """``limit``: transfers that may be open at once."""
        self.epoch = epoch
        self._page_bytes = tuple(page_bytes)
        self._holds = holds
        self._limit = limit
        self._open: dict[str, Receiving] = {}
        self._links: dict[str, Hashable] = {}
        self.failed: Counter[Cause] = Counter()  # since the start, by cause
        self._ended: OrderedDict[str, Answer] = OrderedDict()

    def __len__(self) -> int:
        """Transfers that are open."""
        return len(self._open)

    def expect(self, ticket: Ticket, now: float) -> None:
        """From now on the transfer of ``ticket`` may come. Raises ``TransferError`` where that would be one too many,
        or for an id that was used before."""
        if ticket.transfer in self._open or ticket.transfer in self._ended:
            raise TransferError(f"transfer {ticket.transfer} is known already; a second attempt needs another id")
        if len(self._open) >= self._limit:
            raise TransferError(f"{self._limit} transfers are open, which is as many as may be")
        self._open[ticket.transfer] = Receiving(ticket, self._page_bytes, self._holds, now)

    def take(self, frame: Frame, data: UInt8 | None, now: float, from_: Hashable) -> Outcome:
        """As ``Receiving.take``, of the transfer that the frame names."""
        receiving, answer = self._open.get(frame.transfer), self._ended.get(frame.transfer)
        if frame.epoch != self.epoch:
            text = (
                f"it is meant for epoch {frame.epoch:016x}, this process is {self.epoch:016x}: it started again since"
            )
            return Refusal(Refused(frame.transfer, frame.epoch, "epoch", text), ended=False)
        known = receiving is not None or answer is not None
        if not known or self._links.setdefault(frame.transfer, from_) != from_:
            text = "no such transfer is expected from there"
            return Refusal(Refused(frame.transfer, self.epoch, "unknown", text), ended=False)
        if receiving is None:
            assert answer is not None
            return after_end(answer, frame)
        outcome = receiving.take(frame, data, now)
        self._settle(frame.transfer)
        return outcome

    def abort(self, transfer: str, cause: Cause, text: str) -> Refused | None:
        """Fails a transfer for a reason of our own: what to tell the sender, or None where it is not open."""
        receiving = self._open.get(transfer)
        refused = None if receiving is None else receiving.abort(cause, text)
        self._settle(transfer)
        return refused

    def expire(self, now: float) -> list[tuple[Refused, Hashable | None]]:
        """Fails what is past its deadline: what to tell the sender, and on which link, if it was ever heard of."""
        failed = []
        for receiving in [each for each in self._open.values() if now >= each.deadline]:
            refused = receiving.expire(now)
            assert refused is not None
            failed.append((refused, self._links.get(refused.transfer)))
            self._settle(refused.transfer)
        return failed

    def broke(self, link: Hashable, text: str) -> list[Refused]:
        """Fails what was coming over a link that is no more."""
        failed = []
        for transfer in [each for each in self._open if self._links.get(each) == link]:
            refused = self.abort(transfer, "link", shortened(text))
            assert refused is not None
            failed.append(refused)
        return failed

    def link_of(self, transfer: str) -> Hashable | None:
        """Over which link it comes; None: nothing has come yet, or it is not known."""
        return self._links.get(transfer)

    def next_deadline(self) -> float | None:
        """When ``expire`` should be called at the latest."""
        return min((each.deadline for each in self._open.values()), default=None)

    def _settle(self, transfer: str) -> None:
        receiving = self._open.get(transfer)
        if receiving is None or receiving.answer is None:
            return
        del self._open[transfer]
        if isinstance(receiving.answer, Refused):
            self.failed[receiving.answer.cause] += 1
        self._ended[transfer] = receiving.answer
        while len(self._ended) > REMEMBERED:
            oldest, _ = self._ended.popitem(last=False)
            self._links.pop(oldest, None)
