"""Byte-level BPE written from its description alone, in plain Python: what the library is held against."""

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

from trimaran.text.byte_level import ALPHABET

CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
SPACES = frozenset("\t\n\v\f\r \x85\u00a0\u1680\u2028\u2029\u202f\u205f\u3000").union(map(chr, range(0x2000, 0x200B)))


def kind(char: str) -> str:
    if char in SPACES:
        return "space"
    return {"L": "letter", "N": "digit"}.get(unicodedata.category(char)[0], "other")


def words(text: str) -> Iterator[str]:
    """GPT-2's words: contractions; runs of letters, of digits or of others, with one blank before; white space.

    White space before a word leaves it its last character, which joins the word only if it is a blank.
    """
    at = 0
    while at < len(text):
        if short := next((c for c in CONTRACTIONS if text.startswith(c, at)), None):
            end = at + len(short)
        else:
            first = at + 1 if text[at] == " " and at + 1 < len(text) and kind(text[at + 1]) != "space" else at
            end = first + 1
            while end < len(text) and kind(text[end]) == kind(text[first]):
                end += 1
            if kind(text[first]) == "space" and end < len(text) and end - at > 1:
                end -= 1
        yield text[at:end]
        at = end


def words_digits_apart(text: str) -> Iterator[str]:
    """Each digit is a word; what lies between digits is cut on its own."""
    piece = ""
    for char in text:
        if kind(char) == "digit":
            yield from words(piece)
            yield char
            piece = ""
        else:
            piece += char
    yield from words(piece)


class SlowBPE:
    """Encodes with SmolLM2's way to cut words."""

    def __init__(self, tokens: Sequence[str], merges: Sequence[str]) -> None:
        self._ids = {token: i for i, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}

    def encode(self, text: str) -> list[int]:
        return [i for word in words_digits_apart(text) for i in self._merge(word)]

    def _merge(self, word: str) -> list[int]:
        parts = [char for byte in word.encode() if (char := ALPHABET[byte]) in self._ids]  # unknown bytes fall away
        none = len(self._ranks)
        while True:
            ranked = [(self._ranks.get(pair, none), at) for at, pair in enumerate(pairwise(parts))]
            rank, at = min(ranked, default=(none, 0))
            if rank == none:
                return [self._ids[part] for part in parts]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
