"""Control tokens: found in text that a template wrote, and left as text in text that a user wrote."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trimaran.text.written import Spans

MARKS = ("<|", "|>", "\uff5c", "]~", "~[")
FILLER = "\0"  # no vocabulary has a control token with it


@dataclass(frozen=True)
class ControlToken:
    """A token that steers the model, like ``<|im_end|>``. With ``lstrip``, ``rstrip`` it eats white space beside it."""

    text: str
    id: int
    lstrip: bool = False
    rstrip: bool = False


def is_marker(text: str) -> bool:
    """Whether a token steers the model, by its looks, though its file calls it ordinary text.

    Qwen's ``<|fim_prefix|>``, DeepSeek's ``<｜User｜>``, MiniMax's ``]~b]``: vendors write so what no user would.
    """
    return any(mark in text for mark in MARKS)


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

    def __iter__(self) -> Iterator[ControlToken]:
        return iter(self._tokens.values())

    def split(self, text: str, trusted: Spans | None = None) -> Iterator[str | int]:
        """Yields the text in order: ids of control tokens, and the non-empty pieces between them.

        With ``trusted``, a control token counts only where it lies in one of these spans.
        """
        pieces = self._pattern.split(text if trusted is None else _masked(text, trusted))
        if trusted is not None:
            pieces = _unmasked(pieces, text)
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

    def may_begin_in(self, text: str) -> bool:
        """Whether ``text`` holds a control token, or ends with the beginning of one."""
        tail = text[-self._longest :]
        return self._starts.search(text) is not None or any(tail[at:] in self._prefixes for at in range(len(tail)))

    def made_of(self, text: str, trusted: Spans, given: Iterable[str]) -> bool:
        """Whether a template made a control token in ``text`` of what is ``given``, none of which holds one.

        Such a token lies outside the spans ``trusted``. Either a part of it lies inside, or its characters occur in
        one of the strings in their order: the template took out what stood between them, or changed their case.
        """
        masked = _masked(text, trusted)
        found = set()
        for match in self._pattern.finditer(text):
            foreign = masked.count(FILLER, *match.span())
            if 0 < foreign < len(match[0]):
                return True
            if foreign:
                found.add(match[0].lower())
        return bool(found) and any(_in_order(token, string.lower()) for string in given for token in found)

    def starts_in(self, text: str) -> list[int]:
        """Where control tokens begin in ``text``, also those that overlap."""
        return [match.start() for match in self._starts.finditer(text)]


def _in_order(characters: str, text: str) -> bool:
    rest = iter(text)
    return all(character in rest for character in characters)


def _masked(text: str, trusted: Spans) -> str:
    """``text`` with everything outside ``trusted`` blotted out."""
    parts: list[str] = []
    at = 0
    for begin, end in (*trusted, (len(text), len(text))):
        parts += (FILLER * (begin - at), text[begin:end])
        at = end
    return "".join(parts)


def _unmasked(pieces: list[str], text: str) -> list[str]:
    at = 0
    shown = []
    for piece in pieces:
        shown.append(text[at : at + len(piece)])
        at += len(piece)
    return shown
