"""Guards against templates that make a huge text or list of a small one: in one operation, before any clock is read."""

import re
from collections.abc import Callable, Sized
from functools import wraps
from typing import Any

from jinja2.exceptions import SecurityError

MAX_CHARACTERS = 1 << 24  # of any text that a template makes
MAX_ITEMS = 1 << 18  # of any list
MAX_BITS = 1 << 10  # of numbers that a template raises to a power

# Those of Jinja's that can make much of little.
FILTERS = ("batch", "center", "format", "indent", "list", "replace", "round", "slice", "tojson")
# Formats with a huge width, or with one that comes with the values.
_PERCENT = re.compile(r"%[-+ #0-9.]*(\*|[0-9]{6})")
_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\{|[0-9]{6})")


def guarded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """``filter_``, with a look at what it is given."""
    skip = 1 if hasattr(filter_, "jinja_pass_arg") else 0  # the context

    @wraps(filter_)
    def guard(*args: Any, **kwargs: Any) -> Any:
        value, *others = args[skip:]
        check_call(name, value, (*others, *kwargs.values()))
        return filter_(*args, **kwargs)

    return guard


def check_call(name: str, value: Any, arguments: tuple[Any, ...]) -> None:
    """Raises ``SecurityError`` when ``value.name(*arguments)`` might be too large."""
    if name in ("format", "format_map"):  # the filter takes percent signs, the method braces
        if _PERCENT.search(str(value)) or _BRACES.search(str(value)):
            raise SecurityError("the format asks for a width")
        return
    if name == "list":
        _demand(len(value) if isinstance(value, Sized) else 0, MAX_ITEMS)
    texts = [argument for argument in arguments if isinstance(argument, str)]
    if name == "replace" and len(texts) > 1:
        _demand(len(str(value)) + str(value).count(texts[0]) * len(texts[1]), MAX_CHARACTERS)
    if name == "join" and arguments and isinstance(arguments[0], Sized):
        _demand(len(value) * len(arguments[0]), MAX_CHARACTERS)
    for argument in arguments:  # a width, or an indentation
        if isinstance(argument, int):
            _demand(argument, MAX_ITEMS)


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raises ``SecurityError`` when ``left operator right`` might be too large."""
    if operator == "**" and _bits(left) * abs(right) > MAX_BITS:
        raise SecurityError("the power is too large")
    if operator == "%" and isinstance(left, str) and _PERCENT.search(left):
        raise SecurityError("the format asks for a width")
    if operator == "+" and isinstance(left, str | list) and isinstance(right, Sized):
        _demand(len(left) + len(right), MAX_ITEMS if isinstance(left, list) else MAX_CHARACTERS)
    if operator == "*":
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | bytes | list | tuple):
                _demand(len(sequence) * times, MAX_CHARACTERS if isinstance(sequence, str | bytes) else MAX_ITEMS)


def _demand(size: int, most: int) -> None:
    if size > most:
        raise SecurityError("the text or list that this makes is too long")


def _bits(number: Any) -> float:
    return number.bit_length() if isinstance(number, int) else 1
