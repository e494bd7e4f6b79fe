"""Ids of calls, in the form that a family's template expects them back in."""

import secrets
import string
from collections.abc import Callable

from trimaran.text.tools.formats import NamedCall, ToolFormat

SHORT = 9  # letters and digits of a Mistral id


def call_ids(form: ToolFormat | None, made: int) -> Callable[[str], str]:
    """Makes an id for each call to a function of the name it gets, after ``made`` calls earlier in the conversation."""
    if form is None:
        return _usual
    if form.ids == "counted":
        assert isinstance(form.call, NamedCall)
        written, count = form.call.name, made

        def counted(name: str) -> str:
            nonlocal count
            count += 1
            return written.replace("{n}", str(count - 1)).replace("{f}", name)

        return counted
    return _short if form.ids == "short" else _usual


def _short(_: str) -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(SHORT))


def _usual(_: str) -> str:
    return "call_" + secrets.token_hex(12)
