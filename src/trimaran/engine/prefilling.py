"""The engine of a prefill pool: computes prompts and their first tokens, and gives their pages away.

What of a prompt is complete may be exported after every step. Once its first token has been chosen the sequence is
over here: its pages stay under a lease until whoever decodes has them, or time is up.
"""

from dataclasses import dataclass
from typing import Any

from trimaran.base.formats import KVFormat
from trimaran.base.messages import FromEngine, Submit, Token
from trimaran.engine.engine import Engine
from trimaran.engine.pages import PageRef
from trimaran.engine.request import Request
from trimaran.engine.sequence import Sequence
from trimaran.engine.window import pages_of
from trimaran.kernels.step import UInt8


@dataclass
class Handing:
    """A prompt whose pages go elsewhere."""

    sequence: Sequence
    wanted: tuple[int, ...]  # of each cache group, the first page that is to be given away
    seconds: float  # that its pages are kept for once it is complete
    firsts: tuple[int, ...] = ()  # once it is complete: of each group the first page and all references from there on
    refs: tuple[list[PageRef], ...] = ()
    token: Token | None = None  # the first of the answer; then it is complete
    lost: bool = False  # it failed, or was cancelled: there will be nothing more


class PrefillEngine(Engine):
    """An engine that also takes prompts to hand over (``prefill``); ``handing`` are those whose pages it holds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As an ``Engine``."""
        super().__init__(*args, **kwargs)
        self.handing: dict[str, Handing] = {}

    def prefill(self, message: Submit, wanted: tuple[int, ...], seconds: float) -> Handing:
        """Queues a prompt. Of each cache group the pages from ``wanted`` on can be exported as they are completed, and
        until ``seconds`` after the first token or ``release``. Raises what ``submit`` does."""
        request = self._reception.take(message, self.handing.keys() | self._requests.keys())
        request.drafter = None  # its first token is its last here
        handing = Handing(request.sequence, wanted, seconds)
        self._add(request)
        self.handing[message.id] = handing
        return handing

    def complete(self, handing: Handing) -> int:
        """Index after the last page that can be exported now, of every cache group."""
        sequence, size = handing.sequence, self.executor.page_size
        return pages_of(sequence.prompt_length, size) if handing.token is not None else sequence.computed // size

    def export(
        self, handing: Handing, group: int, first: int, end: int, fmt: KVFormat, out: UInt8 | None = None
    ) -> UInt8:
        """Pages number ``first`` to ``end - 1`` of the prompt in one cache group, which are complete: uint8
        ``[n, bytes]``, in ``out`` if it is given.

        Between two steps. Raises ``TransferError`` when they are kept no longer, ``PageIntegrityError`` when one has
        changed hands, ``ConfigError`` for a format that they cannot have.
        """
        if handing.token is not None:
            begin, refs = handing.firsts[group], handing.refs[group]
            assert begin <= first, "pages that nobody wanted"
            return self.handover.give(handing.sequence.id, group, refs[first - begin : end - begin], fmt, out)
        held = handing.sequence.pages[group]  # the sequence runs, and has what its next step checks
        assert held.first <= first, "a window passed pages that were to be given away"
        refs = held.refs[first - held.first : end - held.first]
        return self.handover.copy_out(handing.sequence.id, group, refs, fmt, out)

    def release(self, request_id: str) -> None:
        """Nobody wants a prompt, or its pages, any more: those that have them, or have given up. Idempotent; no message
        tells of it."""
        self.finish()
        if self.handing.pop(request_id, None) is None:
            return
        if request := self._requests.get(request_id):
            self._drop(request)
        self.leases.close(request_id)
        self._stirred = True
        self._settle_books()

    def reap(self, now: float) -> list[str]:
        """As ``Engine.reap``; what has ended is lost."""
        ended = super().reap(now)
        for request_id in ended:
            self._lose(request_id)
        return ended

    def _accept(self, request: Request, token: Token) -> FromEngine | None:
        sequence = request.sequence
        handing = self.handing.get(sequence.id)
        if handing is None:
            return super()._accept(request, token)
        self._count_prompt(sequence)
        pages = list(zip(sequence.pages, handing.wanted, strict=True))
        handing.firsts = tuple(max(held.first, first) for held, first in pages)
        handing.refs = tuple(held.refs[max(0, first - held.first) :] for held, first in pages)
        handing.token = token
        self.leases.open(sequence.id, handing.refs, handing.seconds)
        self._drop(request)
        return None

    def _drop(self, request: Request) -> None:
        super()._drop(request)
        handing = self.handing.get(request.sequence.id)
        if handing is not None and handing.token is None:
            self._lose(request.sequence.id)

    def _lose(self, request_id: str) -> None:
        handing = self.handing.pop(request_id, None)
        if handing is not None:
            handing.lost = True
