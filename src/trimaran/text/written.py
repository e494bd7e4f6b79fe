"""Text that knows which of its characters a template wrote itself.

A chat template mixes its own literals, which may hold control tokens, with what the request brought, which may not.
``Written`` carries the difference through the operations that templates build prompts with: ``+``, ``~``, ``join``,
stripping, slices, macros. To everything else it is an ordinary string, so a template that searches, splits or compares
sees what it would without. An operation that is not listed here forgets who wrote what: its result counts as the
request's, and control tokens in it stay text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex

Spans = tuple[tuple[int, int], ...]  # begin and end of characters; in order, neither empty nor touching


class Written(str):
    """A string; ``written_by_template`` gives the spans that the template wrote. ``Written(text)`` has none."""

    __slots__ = ("_spans",)
    _spans: Spans

    def __new__(cls, text: object = "", spans: Spans = ()) -> Written:
        made = super().__new__(cls, text)
        made._spans = spans
        return made

    def __str__(self) -> str:
        return self  # ``str(x)``, which Jinja applies to all it prints, keeps the spans

    def __add__(self, other: str) -> str:
        return NotImplemented if hasattr(other, "__html__") else joined((self, other))  # Markup escapes what it meets

    def __radd__(self, other: str) -> str:
        return joined((other, self))

    def __getitem__(self, key: SupportsIndex | slice[Any, Any, Any]) -> str:
        if not isinstance(key, slice) or key.step not in (None, 1):
            return super().__getitem__(key)
        begin, end, _ = key.indices(len(self))
        return self._cut(begin, max(begin, end))

    def join(self, parts: Iterable[str]) -> str:
        pieces: list[str] = []
        for part in parts:
            pieces += (self, part) if pieces else (part,)
        return joined(pieces)

    def strip(self, characters: str | None = None) -> str:
        end = len(super().rstrip(characters))
        return self._cut(min(end, len(self) - len(super().lstrip(characters))), end)

    def lstrip(self, characters: str | None = None) -> str:
        return self._cut(len(self) - len(super().lstrip(characters)), len(self))

    def rstrip(self, characters: str | None = None) -> str:
        return self._cut(0, len(super().rstrip(characters)))

    def _cut(self, begin: int, end: int) -> Written:
        kept = ((max(low, begin) - begin, min(high, end) - begin) for low, high in self._spans)
        return Written(super().__getitem__(slice(begin, end)), tuple(span for span in kept if span[0] < span[1]))


def literal(text: str) -> Written:
    """Text that the template wrote, all of it."""
    return Written(text, ((0, len(text)),) if text else ())


def joined(parts: Iterable[str]) -> Written:
    """``"".join(parts)`` that keeps who wrote what."""
    pieces = list(parts)
    spans: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        for low, high in written_by_template(piece):
            if spans and spans[-1][1] == at + low:
                spans[-1] = spans[-1][0], at + high
            else:
                spans.append((at + low, at + high))
        at += len(piece)
    return Written("".join(pieces), tuple(spans))


def written_by_template(text: str) -> Spans:
    """The spans of ``text`` that the template wrote."""
    return text._spans if isinstance(text, Written) else ()
