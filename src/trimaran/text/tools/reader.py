"""Text that arrives in pieces, for code that reads it as if it were whole.

Every method is a generator that yields where it cannot go on without more text. What it does depends on the text
alone, never on how it was cut, because nothing is decided before enough of it is there.
"""

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeVar

from trimaran.text.tools.json_text import JsonError, JsonText

T = TypeVar("T")
Steps = Generator[None, None, T]
Sink = Callable[[str], None]

SPACE = " \t\r\n"
_SPACE = re.compile(f"[{SPACE}]*")


class MalformedCallError(Exception):
    """A tool call is not what its family's format says."""


class Reader:
    """Reads pieces given to ``feed``; after ``end`` no more come. ``mark`` begins to keep what is read."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self.position = 0  # characters that have been read
        self._kept: list[str] | None = None

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        self._ended = True

    def mark(self, *begun: str) -> None:
        """Keeps what is read from here on, after ``begun``."""
        self._kept = list(begun)

    def kept(self) -> str:
        """What was read since ``mark``; keeps no more."""
        kept, self._kept = "".join(self._kept or ()), None
        return kept

    def peek(self, size: int) -> Steps[str]:
        """The next characters; fewer than ``size`` only where the text ends."""
        while len(self._text) - self._at < size and not self._ended:
            yield
        return self._text[self._at : self._at + size]

    def space(self) -> Steps[str]:
        """Reads white space."""
        parts: list[str] = []
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            parts.append(self._take(match.end()))
            if self._at < len(self._text) or self._ended:
                return "".join(parts)
            yield

    def exactly(self, text: str) -> Steps[bool]:
        """Reads ``text`` if it is next."""
        while not self._ended and len(self._text) - self._at < len(text):
            if not text.startswith(self._text[self._at :]):
                return False
            yield
        if not self._text.startswith(text, self._at):
            return False
        self._take(self._at + len(text))
        return True

    def literal(self, text: str) -> Steps[bool]:
        """Reads ``text`` if it is next, with any white space before it and for line breaks in it.

        Where the answer is no, white space may have been read, and where the text ends inside the literal, all of it.
        """
        for part in parts_of(text):
            yield from self.space()
            if not (yield from self.exactly(part)):
                if self._ended and part.startswith(self._text[self._at :]):
                    self._take(len(self._text))
                return False
        return True

    def until(self, stops: tuple[str, ...], sink: Sink) -> Steps[str | None]:
        """Gives text to ``sink`` up to the first of ``stops``, which is not read; None where the text ends before.

        No stop stands inside another.
        """
        pattern, prefixes, longest = _automaton(stops)
        while True:
            found = pattern.search(self._text, self._at)
            if found is not None:
                if found.start() > self._at:
                    sink(self._take(found.start()))
                return found[0]
            end = len(self._text)
            if not self._ended:
                first = max(self._at, end - longest + 1)
                end = next((at for at in range(first, end) if self._text[at:] in prefixes), end)
            if end > self._at:
                sink(self._take(end))
            if self._ended:
                return None
            yield

    def json(self, sink: Sink) -> Steps[None]:
        """Gives one JSON value to ``sink``; raises ``MalformedCallError`` where there is none."""
        value = JsonText()
        try:
            while not value.done:
                if self._at == len(self._text):
                    if self._ended:
                        value.finish()
                        return
                    yield
                    continue
                size = value.feed(self._text[self._at :])
                if size:
                    sink(self._take(self._at + size))
        except JsonError as error:
            if error.at:
                sink(self._take(self._at + error.at))
            raise MalformedCallError(f"not JSON: {error}") from None

    @property
    def exhausted(self) -> bool:
        """Whether the text has ended and all of it has been read."""
        return self._ended and self._at == len(self._text)

    def _take(self, end: int) -> str:
        text = self._text[self._at : end]
        self.position += end - self._at
        self._at = end
        if self._kept is not None and text:
            self._kept.append(text)
        return text


@lru_cache(maxsize=256)
def parts_of(literal: str) -> tuple[str, ...]:
    """What must stand in a text for a literal of a format: its lines."""
    return tuple(part for part in literal.split("\n") if part)


@lru_cache(maxsize=256)
def _automaton(stops: tuple[str, ...]) -> tuple[re.Pattern[str], frozenset[str], int]:
    ordered = sorted(stops, key=len, reverse=True)
    prefixes = frozenset(stop[:end] for stop in stops for end in range(1, len(stop)))
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)"), prefixes, max(map(len, stops), default=1)
