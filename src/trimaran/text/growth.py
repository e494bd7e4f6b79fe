"""Guards against templates that make a huge text or list of a small one: in one operation, before it can be weighed."""

import re
from collections.abc import Callable, Mapping, Sized
from functools import wraps
from typing import Any

from jinja2.exceptions import SecurityError

from trimaran.text.budget import MAX_BITS, MAX_CHARACTERS, current

MAX_ITEMS = 1 << 18  # of any list
MAX_POWER_BITS = 1 << 10  # of numbers that a template raises to a power
MAX_COMPARED = 1 << 30  # characters that a search compares at most
MAX_SLOW = 1 << 16  # the weight of what a slow filter is given

SLOW_FILTERS = ("pprint", "striptags", "title", "urlize", "wordcount", "wordwrap", "xmlattr")
SEARCHES = ("rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip", "trim")  # Python's take n * m
CODECS = ("utf-8", "utf8", "ascii", "latin-1")  # punycode and idna take n * n
# Formats with a huge width, or with one that comes with the values.
_PERCENT = re.compile(r"%[-+ #0-9.]*(\*|[0-9]{4})")
_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\{|[0-9]{4})")
_WIDTH = 1000  # and the most that others can ask for


def guarded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """``filter_``, with a look at what it is given and at what it makes."""
    skip = 1 if hasattr(filter_, "jinja_pass_arg") else 0  # the context

    @wraps(filter_)
    def guard(*args: Any, **kwargs: Any) -> Any:
        value, *others = args[skip:]
        check_call(name, value, (*others, *kwargs.values()))
        return current.get().made(filter_(*args, **kwargs))

    return guard


def check_call(name: str, value: Any, arguments: tuple[Any, ...]) -> None:
    """Raises ``SecurityError`` when ``value.name(*arguments)``, or the filter, might be too large or take too long."""
    if name in ("format", "format_map"):  # the filter takes percent signs, the method braces
        _check_format(value, arguments)
        return
    if name == "list":
        _demand(len(value) if isinstance(value, Sized) else 0, MAX_ITEMS)
    if name in SLOW_FILTERS:
        _demand(current.get().weigh(value), MAX_SLOW)
    if name in ("encode", "decode") and not all(str(argument).lower() in CODECS for argument in arguments):
        raise SecurityError("the text may be encoded as UTF-8 only")
    texts = [argument for argument in arguments if isinstance(argument, str | bytes)]
    if name in SEARCHES and texts:
        _demand(len(value) * len(texts[0]), MAX_COMPARED)
    if name == "replace" and len(texts) > 1:
        _demand(len(str(value)) + str(value).count(str(texts[0])) * len(texts[1]), MAX_CHARACTERS)
    if name == "translate":
        tables = [table.values() for table in arguments if isinstance(table, Mapping)]
        _demand(len(value) * max((len(str(text)) for table in tables for text in table), default=1), MAX_CHARACTERS)
    if name == "join" and arguments and isinstance(arguments[0], Sized):
        _demand(len(value) * len(arguments[0]), MAX_CHARACTERS)
    for argument in arguments:  # a width, or an indentation
        if isinstance(argument, int):
            _demand(argument, MAX_ITEMS)
    if name in ("indent", "expandtabs"):
        width = max((len(each) if isinstance(each, str) else each for each in arguments), default=8)
        text = str(value)
        _demand(width * (len(text.splitlines()) + text.count("\t")), MAX_CHARACTERS)


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raises ``SecurityError`` when ``left operator right`` might be too large."""
    if _bits(left) > MAX_BITS or _bits(right) > MAX_BITS:  # from the request, or counted up
        raise SecurityError("the number is too large")
    if operator == "**" and _bits(left) * abs(right) > MAX_POWER_BITS:
        raise SecurityError("the power is too large")
    if operator == "%" and isinstance(left, str | bytes):
        _check_format(left, right if isinstance(right, tuple) else (right,))
    if operator == "+" and isinstance(left, str | list) and isinstance(right, Sized):
        _demand(len(left) + len(right), MAX_ITEMS if isinstance(left, list) else MAX_CHARACTERS)
    if operator == "*":
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | bytes | list | tuple):
                _demand(len(sequence) * times, MAX_CHARACTERS if isinstance(sequence, str | bytes) else MAX_ITEMS)


def _check_format(value: Any, arguments: tuple[Any, ...]) -> None:
    """Any field may show any of ``arguments``, as often as it likes."""
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    if _PERCENT.search(text) or _BRACES.search(text):
        raise SecurityError("the format asks for a width")
    fields = max(text.count("{"), text.count("%"))
    _demand(fields * (_WIDTH + sum(map(current.get().weigh, arguments))), MAX_CHARACTERS)


def _demand(size: int, most: int) -> None:
    if size > most:
        raise SecurityError("the text or list that this makes is too long")


def _bits(number: Any) -> float:
    return number.bit_length() if isinstance(number, int) else 1
