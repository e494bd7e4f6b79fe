"""One sequence of a request on the server's side: tokens in, text and an end out."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from trimaran.base.errors import EngineDiedError
from trimaran.base.messages import Token, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.text.stream import TextDelta, TextStream
from trimaran.text.tokenizer import Tokenizer

Finish = Literal["stop", "length"]


class Piece(msgspec.Struct, frozen=True):
    """What one choice has added: text, and the tokens that this text completes with their offsets in the choice's text.

    ``generated`` counts tokens, also those whose text is held back and a stop token. ``stop_reason`` is the stop string
    or the id of ``stop_token_ids`` that ended the choice (as in vLLM).
    """

    choice: int
    text: str
    tokens: tuple[Token, ...]
    offsets: tuple[int, ...]
    generated: int
    finish: Finish | None = None
    stop_reason: str | int | None = None


class Choice:
    """Feeds one sequence's tokens through a ``TextStream``; ``last`` is when it was last fed.

    A ``message`` stands alone; other text goes on from its prompt.
    """

    def __init__(self, index: int, tokenizer: Tokenizer, sampling: SamplingParams, *, message: bool) -> None:
        self.index = index
        self.last: float | None = None
        self._stop_ids = sampling.stop_token_ids
        self._stream = TextStream(tokenizer, sampling.stop, min_tokens=sampling.min_tokens, message=message)

    def feed(self, message: Tokens) -> Piece:
        """The text that ``message`` makes certain. A stop string drops the tokens after it and ends the choice."""
        if message.finish == "cancelled":
            raise EngineDiedError("the engine stopped before the request was done")
        before = self._stream.count
        delta = self._stream.feed(message.tokens)
        generated = self._stream.count - before
        if self._stream.stopped_by is not None:
            return self._piece(delta, generated, "stop", self._stream.stopped_by)
        if message.finish is None:
            return self._piece(delta, generated)
        stopped_by = message.stopped_by
        rest = self._stream.finish()
        delta = TextDelta(delta.text + rest.text, delta.tokens + rest.tokens, delta.offsets + rest.offsets)
        reason = stopped_by if stopped_by in self._stop_ids else None
        return self._piece(delta, generated + (stopped_by is not None), message.finish, reason)

    def _piece(
        self, delta: TextDelta, generated: int, finish: Finish | None = None, reason: str | int | None = None
    ) -> Piece:
        return Piece(self.index, delta.text, delta.tokens, delta.offsets, generated, finish, reason)


def joined(pieces: Iterable[Piece]) -> Piece:
    """All pieces of one choice, in order, as one."""
    parts = list(pieces)
    last = parts[-1]
    return Piece(
        last.choice,
        "".join(part.text for part in parts),
        tuple(token for part in parts for token in part.tokens),
        tuple(offset for part in parts for offset in part.offsets),
        sum(part.generated for part in parts),
        last.finish,
        last.stop_reason,
    )
