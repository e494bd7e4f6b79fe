"""Control tokens: found in text that a template wrote, and broken up in text that a user wrote."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class ControlToken:
    """A token that steers the model, like ``<|im_end|>``. With ``lstrip``, ``rstrip`` it eats white space beside it."""

    text: str
    id: int
    lstrip: bool = False
    rstrip: bool = False


class ControlTokens:
    """All control tokens of a vocabulary. The longest wins where several begin at one place.

    A token of one character cannot be told from text and is only ever written by its id.
    """

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        self._tokens = {token.text: token for token in tokens if len(token.text) > 1}
        texts = sorted(self._tokens, key=len, reverse=True)
        one = "|".join(map(re.escape, texts)) or r"(?!)"  # matches nothing
        self._pattern = re.compile(f"({one})")
        self._starts = re.compile(f"(?={one})")  # zero-width, so that overlapping tokens are found too
        self._prefixes = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._longest = len(texts[0]) if texts else 1

    def split(self, text: str) -> Iterator[str | int]:
        """Yields the text in order: ids of control tokens, and the non-empty pieces between them."""
        pieces = self._pattern.split(text)
        for at in range(1, len(pieces), 2):
            token = self._tokens[pieces[at]]
            if token.lstrip:
                pieces[at - 1] = pieces[at - 1].rstrip()
            if token.rstrip:
                pieces[at + 1] = pieces[at + 1].lstrip()
        for at, piece in enumerate(pieces):
            if at % 2:
                yield self._tokens[piece].id
            elif piece:
                yield piece

    def broken_up(self, text: str, mark: str) -> str:
        """``text`` with ``mark`` inserted so that it holds no control token, nor the beginning of one at its end."""
        starts = {match.start() for match in self._starts.finditer(text)}
        starts.update(
            at for at in range(max(0, len(text) - self._longest + 1), len(text)) if text[at:] in self._prefixes
        )
        if not starts:
            return text
        cuts = [0, *(start + 1 for start in sorted(starts)), len(text)]
        return mark.join(text[begin:end] for begin, end in pairwise(cuts))
