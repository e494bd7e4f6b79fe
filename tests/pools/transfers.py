"""Two engines' worth of pages, without engines: a prompt, the sender's pages, the receiver's, and a ticket."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trimaran.base.formats import CacheGroup, HeadsCache, KVFormat
from trimaran.base.messages import Token
from trimaran.kernels.page_layout import PageLayout
from trimaran.pools.arrivals import Arrivals
from trimaran.pools.hello import Hello
from trimaran.pools.key import PoolKey
from trimaran.pools.layout import layout_data
from trimaran.pools.receiving import Admit, Import, Outcome, Refusal
from trimaran.pools.sending import Batch, Sending
from trimaran.pools.ticket import Address, Ticket, TicketPages, digest_of_tokens
from trimaran.pools.transfer import Frame, PageFrame
from trimaran.pools.transports import TRANSPORTS

PAGE = 16
EPOCH = 0x1234
MODEL = "sha256:model"
LEASE = 5.0
KEY = PoolKey("a key for tests that nobody should ever use")
FRAME_BYTES = 1 << 16
FIRST = [Token(7), Token(9)]
LAYOUT = PageLayout(
    "reference",
    KVFormat.BF16,
    PAGE,
    (CacheGroup((HeadsCache(2, 1, 4),)), CacheGroup((HeadsCache(1, 1, 4),), window=40)),
)
TAKEN_FORMAT = KVFormat.INT8  # the receiver's
PAGE_BYTES = [LAYOUT.converted(TAKEN_FORMAT).page_bytes(group) for group in range(2)]


def hello(of: str, **changes: Any) -> Hello:
    values: dict[str, Any] = {
        "role": of,
        "name": f"the {of}",
        "epoch": EPOCH,
        "model": MODEL,
        "layout": layout_data(LAYOUT if of == "sender" else LAYOUT.converted(TAKEN_FORMAT)),
        "transports": list(TRANSPORTS),
        "frame_bytes": FRAME_BYTES if of == "receiver" else 0,
    }
    return Hello(**(values | changes))


def prompt(tokens: int) -> list[int]:
    return [(7 * i) % 101 for i in range(tokens)]


def ticket(tokens: int = 70, cached: int = 0, **changes: object) -> Ticket:
    """For a receiver that has the prompt's first ``cached`` pages already."""
    end = -(-tokens // PAGE)
    firsts = cached, max(cached, (tokens - 40 + 1) // PAGE)
    groups = [
        TicketPages(first, [10 * group + i + 1 for i in range(end - first)], [100 + i for i in range(end - first)])
        for group, first in enumerate(firsts)
    ]
    values: dict[str, object] = {
        "version": 1,
        "transfer": "one",
        "epoch": EPOCH,
        "model": MODEL,
        "layout": layout_data(LAYOUT.converted(TAKEN_FORMAT)),
        "tokens": tokens,
        "token_digest": digest_of_tokens(prompt(tokens)),
        "groups": groups,
        "lease": LEASE,
        "addresses": [Address("tcp", "127.0.0.1:1")],
    }
    return Ticket(**(values | changes))  # type: ignore[arg-type]


def sending(of: Ticket, now: float = 0.0) -> Sending:
    return Sending(of, LAYOUT, MODEL, prompt(of.tokens), now)


def exported(batch: Batch) -> np.ndarray:
    """What the sender's executor gives for a batch: bytes that say which page of the sequence they are."""
    numbers = batch.first + np.arange(batch.count)
    rows = [np.random.default_rng([batch.group, n]).integers(0, 256, PAGE_BYTES[batch.group]) for n in numbers]
    return np.array(rows, np.uint8)


def frames(machine: Sending, computed: int | None = None, room: int = 1 << 30) -> list[tuple[Frame, np.ndarray | None]]:
    """Everything that is due now."""
    found: list[tuple[Frame, np.ndarray | None]] = []
    while (batch := machine.due(machine.ticket.tokens if computed is None else computed, room)) is not None:
        data = exported(batch)
        found.append((machine.frame(batch, data), data.reshape(-1)))
    return found


def whole(machine: Sending, room: int = 1 << 30) -> list[tuple[Frame, np.ndarray | None]]:
    return [*frames(machine, room=room), (machine.commit(FIRST), None)]


@dataclass
class Receiver:
    """The receiver's engine: pages under tags, filled by what the transfers say."""

    limit: int = 8
    epoch: int = EPOCH
    tags: dict[tuple[int, int], int] = field(default_factory=dict)
    pages: dict[tuple[int, int], bytes] = field(default_factory=dict)
    admitted: list[Admit] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(
            self.epoch, PAGE_BYTES, lambda group, page, tag: self.tags[group, page] == tag, self.limit
        )

    def expect(self, of: Ticket, now: float = 0.0) -> None:
        self.arrivals.expect(of, now)
        for group, wanted in enumerate(of.groups):
            self.tags |= {(group, page): tag for page, tag in zip(wanted.pages, wanted.tags, strict=True)}

    def take(self, frame: Frame, data: np.ndarray | None, now: float = 0.0, link: str = "a") -> Outcome:
        outcome = self.arrivals.take(frame, data, now, link)
        match outcome:
            case Import(group=group, pages=pages, data=rows):
                assert isinstance(frame, PageFrame)
                for (page, tag), row in zip(pages, rows, strict=True):
                    assert self.tags[group, page] == tag
                    self.pages[group, page] = row.tobytes()
            case Admit():
                self.admitted.append(outcome)
            case Refusal(ended=True):
                self.released.append(outcome.answer.transfer)
        return outcome

    def right(self, of: Ticket) -> bool:
        """Whether the pages of a ticket hold what the sender had there."""
        return all(
            self.pages.get((group, page)) == exported(Batch(group, wanted.first + i, 1, 0)).tobytes()
            for group, wanted in enumerate(of.groups)
            for i, page in enumerate(wanted.pages)
        )
