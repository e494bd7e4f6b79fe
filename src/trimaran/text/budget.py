"""What one rendering of a template may use: seconds, characters in all, and the weight of each value that it makes.

A value is weighed when it is made. Whatever is done with it afterwards (to print, compare, sort, search it) then ends
soon, even where a list holds the same list many times over, and the clock is looked at between two such operations.
"""

import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext

MAX_CHARACTERS = 1 << 24  # of any text, and the weight of any list
MAX_MADE = 1 << 28  # characters, and bytes of lists, that one rendering makes
MAX_BITS = 1 << 12  # of any whole number
PLACE = 64  # the weight of a place in a list; a list has 2^18 at most
POINTER = 8  # bytes


class TemplateRefusedError(TemplateError):
    """The template called ``raise_exception``, or reached a limit: the text is meant for who sent the conversation."""


class Budget:
    """One rendering's; raises ``TemplateRefusedError`` when it is used up, ``SecurityError`` on a value too large."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._left = MAX_MADE
        self._weights: dict[int, tuple[Any, int]] = {}  # by id, with the value, so that the id stays its own

    def check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TemplateRefusedError(f"rendering the conversation takes more than {self._seconds:g} seconds")

    def made(self, value: Any) -> Any:
        """``value``, which an operation has made; what would come one by one is a list from here on."""
        self.check_time()
        if isinstance(value, str | bytes):
            self._spend(_allowed(len(value)))
        elif isinstance(value, list | tuple | dict):
            self._spend(len(value) * POINTER)
            self.weigh(value)
        elif isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise SecurityError("the number is too large")
        elif value is not None and isinstance(value, Iterator) and not isinstance(value, LoopContext):
            return self.made(self._listed(value))
        return value

    def made_of(self, value: Any, left: Any, right: Any) -> Any:
        """``made`` of the list ``left + right``, without a look at each of its places: lists grow one by one."""
        if isinstance(value, list):
            self._weights[id(value)] = value, _allowed(self.weigh(left) + self.weigh(right))
        return self.made(value)

    def weigh(self, value: Any) -> int:
        """Characters and places in ``value``, as often as they are in it; values never change in the sandbox."""
        if isinstance(value, str | bytes):
            return _allowed(len(value))
        if not isinstance(value, list | tuple | dict):
            return 0
        if (known := self._weights.get(id(value))) is not None:
            return known[1]
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        weight = _allowed(len(parts) * PLACE + sum(map(self.weigh, parts)))
        self._weights[id(value)] = value, weight
        return weight

    def _listed(self, values: Iterator[Any]) -> list[Any]:
        made: list[Any] = []
        for value in values:
            self.check_time()
            made.append(value)
            _allowed(len(made) * PLACE)
        return made

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TemplateRefusedError(f"rendering the conversation makes more than {MAX_MADE} characters of text")


def _allowed(size: int) -> int:
    if size > MAX_CHARACTERS:
        raise SecurityError("the text or list that this makes is too long")
    return size


current: ContextVar[Budget] = ContextVar("budget")
