"""Token ids to text as they arrive: whole characters only, and nothing that may turn out to be a stop string."""

import codecs
from collections import deque
from collections.abc import Sequence

import msgspec

from trimaran.base.messages import Token
from trimaran.text.stops import StopFinder
from trimaran.text.tokenizer import Tokenizer


class TextDelta(msgspec.Struct, frozen=True):
    """New text, and the tokens whose text has now been given whole; ``offsets`` says where in the text each begins."""

    text: str = ""
    tokens: tuple[Token, ...] = ()
    offsets: tuple[int, ...] = ()


class TextStream:
    """One choice of one request, from tokens to text. Joining all deltas gives the same text however tokens are fed.

    A stop string ends the text before itself; it counts only if it ends after the first ``min_tokens`` tokens. Control
    tokens give no text. A ``message`` stands alone, and begins as ``Tokenizer.decode`` lets it; other text goes on from
    a prompt, and keeps a blank at its beginning.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, min_tokens: int = 0, message: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._min_tokens = min_tokens
        self._finder = StopFinder(stop)
        self._holds_back = bool(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_blank = message and tokenizer.drops_blank
        self._between = True  # characters: the decoder holds no part of one
        self._pending = ""  # decoded, not given yet
        self._given = 0  # characters
        self._waiting: deque[tuple[Token, int, int]] = deque()  # with the span of its text
        self.count = 0  # tokens read, the one that completes a stop string included, those after it not
        self.stopped_by: str | None = None  # the stop string that was found

    def feed(self, tokens: Sequence[Token]) -> TextDelta:
        """Reads tokens; once a stop string was found, further tokens are ignored."""
        if not self._holds_back:
            return self._pass_on(tokens)
        for token in tokens:
            if self.stopped_by is not None:
                break
            self.count += 1
            text = self._decode(token.id)
            begin = self._given + len(self._pending)
            self._waiting.append((token, begin, begin + len(text)))
            self._read(text)
        return self._give(len(self._pending) - (self._finder.held if self.stopped_by is None else 0))

    def finish(self) -> TextDelta:
        """The generation has ended: gives all that was held back."""
        if self.stopped_by is None:
            self._read(self._decoder.decode(b"", final=True))
        delta = self._give(len(self._pending))
        rest = () if self.stopped_by is not None else tuple(self._waiting)
        self._waiting.clear()
        return TextDelta(
            delta.text, (*delta.tokens, *(t for t, _, _ in rest)), (*delta.offsets, *(begin for _, begin, _ in rest))
        )

    def _pass_on(self, tokens: Sequence[Token]) -> TextDelta:
        """``feed`` without stop strings, for most requests: nothing waits."""
        texts, offsets = [], []
        for token in tokens:
            texts.append(text := self._decode(token.id))
            offsets.append(self._given)
            self._given += len(text)
        self.count += len(tokens)
        return TextDelta("".join(texts), tuple(tokens), tuple(offsets))

    def _decode(self, token_id: int) -> str:
        """The characters that a token completes."""
        if token_id in self._tokenizer.special_ids:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._drops_blank and data:
            self._drops_blank, data = False, data.removeprefix(b" ")
        if self._between:
            try:
                return data.decode()
            except UnicodeDecodeError:  # part of a character, or no character at all
                pass
        text = self._decoder.decode(data)
        self._between = not self._decoder.getstate()[0]
        return text

    def _read(self, text: str) -> None:
        self._pending += text
        found = self._finder.feed(text, armed=self.count > self._min_tokens)
        if found is not None:
            end, self.stopped_by = found
            self._pending = self._pending[: len(self._pending) - len(text) + end - len(self.stopped_by)]

    def _give(self, size: int) -> TextDelta:
        text, self._pending = self._pending[:size], self._pending[size:]
        self._given += size
        tokens, offsets = [], []
        while self._waiting and self._is_given(*self._waiting[0][1:]):
            token, begin, _ = self._waiting.popleft()
            tokens.append(token)
            offsets.append(begin)
        return TextDelta(text, tuple(tokens), tuple(offsets))

    def _is_given(self, begin: int, end: int) -> bool:
        # A token that runs into the stop string is given for the text before it.
        return end <= self._given or (self.stopped_by is not None and begin < self._given)
