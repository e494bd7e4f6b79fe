"""The Jinja environment in which a model's chat template runs: what Hugging Face templates expect, and limits.

A template comes with the weights, so it is somebody's code: it runs in Jinja's sandbox (no attributes that lead out,
no changes to what it is given), for a bounded time, to a bounded size.
"""

import json
import time
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trimaran.text.growth import FILTERS, MAX_CHARACTERS, check_call, check_operation, guarded
from trimaran.text.written import Written, joined, literal, written_by_template

MAX_SECONDS = 5.0

_deadline: ContextVar[float] = ContextVar("deadline")


class TemplateRefusedError(TemplateError):
    """The template called ``raise_exception``, or reached a limit: the text is meant for who sent the conversation."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as ``apply_chat_template`` in transformers sets it up, with text that knows who wrote it."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    literal = staticmethod(literal)
    concat = staticmethod(joined)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationBlock])
        self.filters["tojson"] = _tojson
        self.filters["join"] = _join
        self.filters["safe"] = str  # there is no HTML here, and Jinja's would escape what it is added to
        for name in FILTERS:
            self.filters[name] = guarded(name, self.filters[name])
        del self.globals["lipsum"]  # text without end, and no template's
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        text = getattr(function, "__self__", None)
        if isinstance(text, str | bytes | int):
            check_call(function.__name__, text, (*args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        """Jinja's own stand-in for ``str.format``, which ``call`` no longer knows as a method of a text."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_call("format", value.__self__, ())
        return wrapped

    def tilde(self, parts: Iterable[Any]) -> Written:
        """``a ~ b``."""
        made = joined(map(str, parts))
        if len(made) > MAX_CHARACTERS:
            raise SecurityError("the text is too long")
        return made

    def check_time(self) -> None:
        """Called by every turn of a loop."""
        _check_time()

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_time()
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Sums, products, powers and formats, as long as the result stays small."""
        _check_time()
        check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)


def run_template(template: Template, variables: dict[str, Any]) -> Written:
    """The template's output; raises ``TemplateRefusedError`` past a limit, and whatever the template's code raises."""
    reset = _deadline.set(time.monotonic() + MAX_SECONDS)
    try:
        parts: list[str] = []
        size = 0
        for part in template.generate(variables):
            _check_time()
            size += len(part)
            if size > MAX_CHARACTERS:
                raise TemplateRefusedError(f"the conversation is rendered to more than {MAX_CHARACTERS} characters")
            parts.append(part)
        return joined(parts)
    finally:
        _deadline.reset(reset)


def _check_time() -> None:
    if time.monotonic() > _deadline.get():
        raise TemplateRefusedError(f"rendering the conversation takes more than {MAX_SECONDS:g} seconds")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_environment
def _join(environment: ChatEnvironment, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    parts = list(map(str, value))
    check_call("join", d, (parts,))
    return Written(d, written_by_template(d)).join(parts)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusedError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


class _GenerationBlock(Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares a plain set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))
