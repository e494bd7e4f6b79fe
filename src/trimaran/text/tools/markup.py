"""Control tokens inside text, as characters that no text has.

Text streaming leaves control tokens out. Where a family's calls are marked by such tokens, a parser has to see them,
and to tell them from text that merely spells them. Here each becomes half of a surrogate pair: decoded UTF-8 never
holds one, so a parser that works on strings cannot mistake one for the other.
"""

from collections.abc import Iterable, Sequence

from trimaran.base.messages import Token
from trimaran.text.tokenizer import Tokenizer

FIRST = 0xD800
MOST = 0x800


class Markup:
    """The control tokens in some texts, each as one character."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        spelled = {token.id: token.text for token in tokenizer.control}
        self._ids: dict[int, str] = {}  # to its character
        self._control = tokenizer.control
        for text in texts:
            for piece in tokenizer.control.split(text):
                if isinstance(piece, int) and piece in tokenizer.special_ids and piece not in self._ids:
                    assert len(self._ids) < MOST
                    self._ids[piece] = chr(FIRST + len(self._ids))
        self._spelled = spelled
        self._shown = {ord(character): spelled[token] for token, character in self._ids.items()}
        self._dropped = dict.fromkeys(self._shown, "")

    def encode(self, text: str) -> str:
        """A text of a format, with its control tokens as their characters."""
        return "".join(
            self._ids.get(piece, self._spelled[piece]) if isinstance(piece, int) else piece
            for piece in self._control.split(text)
        )

    def show(self, text: str) -> str:
        """The text with control tokens as they are spelled."""
        return text.translate(self._shown) if self._shown else text

    def drop(self, text: str) -> str:
        """The text without control tokens, as it is streamed otherwise."""
        return text.translate(self._dropped) if self._dropped else text

    def __contains__(self, token_id: int) -> bool:
        """Whether a token is one of those control tokens."""
        return token_id in self._ids

    def merged(self, text: str, tokens: Sequence[Token], offsets: Sequence[int], given: int) -> str:
        """``text`` of a stream with the control tokens where they came; ``given`` characters came before it.

        ``tokens`` are those that the text completes, ``offsets`` where each begins in the whole text.
        """
        if not self._ids:
            return text
        parts: list[str] = []
        at = 0
        for token, offset in zip(tokens, offsets, strict=True):
            if (character := self._ids.get(token.id)) is not None:
                place = offset - given
                parts += (text[at:place], character)
                at = place
        return "".join((*parts, text[at:])) if parts else text
