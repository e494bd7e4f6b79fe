"""The Jinja environment in which a model's chat template runs: what Hugging Face templates expect, and limits.

A template comes with the weights, so it is somebody's code: it runs in Jinja's sandbox (no attributes that lead out,
no changes to what it is given), for a bounded time, to a bounded size.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, nodes, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from trimaran.text.budget import MAX_CHARACTERS, Budget, TemplateRefusedError, current
from trimaran.text.growth import check_call, check_operation, guarded
from trimaran.text.written import Written, joined, literal, written_by_template

MAX_SECONDS = 5.0
MAX_LAYOUT = 1000  # characters of what ``strftime_now`` is given
MAX_INDENT = 1000


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as ``apply_chat_template`` in transformers sets it up, with text that knows who wrote it."""

    intercepted_binops = frozenset({"+", "*", "/", "//", "**", "%"})
    literal = staticmethod(literal)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationBlock],
            optimized=False,  # to fold constants takes time that grows with the square of their nesting, at least
        )
        self.filters["tojson"] = _tojson
        self.filters["join"] = _join
        self.filters["safe"] = _safe
        for name, filter_ in self.filters.items():
            self.filters[name] = guarded(name, filter_)
        del self.globals["lipsum"]  # text without end, and no template's
        self.globals["namespace"] = _Namespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        text = getattr(function, "__self__", None)
        if function is literal or text is self:  # what ``template_code.py`` put in; a template has no name for it
            return function(*args)
        budget = current.get()
        budget.check_time()
        if isinstance(text, str | bytes | int):
            check_call(function.__name__, text, (*args, *kwargs.values()))
        return budget.made(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Any:
        """Jinja's own stand-in for ``str.format``, which ``call`` no longer knows as a method of a text."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            check_call("format", value.__self__, (*args, *kwargs.values()))
            made: str = wrapped(*args, **kwargs)
            return made

        return checked

    def made(self, value: Any) -> Any:
        """What the template has just made, weighed."""
        return current.get().made(value)

    def concat(self, parts: Iterable[str]) -> Written:
        """What a macro or a block has written."""
        pieces = list(parts)
        _demand(sum(map(len, pieces)))
        return joined(pieces)

    def tilde(self, parts: Iterable[Any]) -> Any:
        """``a ~ b``."""
        return self.made(self.concat(map(str, parts)))

    def check_time(self) -> None:
        """Called by every turn of a loop."""
        current.get().check_time()

    def call_test(self, *args: Any, **kwargs: Any) -> Any:
        current.get().check_time()
        return super().call_test(*args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        current.get().check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        current.get().check_time()
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Sums, products, powers and formats, as long as the result stays small."""
        check_operation(operator, left, right)
        value = super().call_binop(context, operator, left, right)
        return current.get().made_of(value, left, right) if operator == "+" else self.made(value)


class _Namespace(Namespace):
    """Jinja's, which may hold what is not weighed: others like it. So its text does not show what it holds."""

    def __repr__(self) -> str:
        return "<Namespace>"


def run_template(template: Template, variables: dict[str, Any]) -> Written:
    """The template's output; raises ``TemplateRefusedError`` past a limit, and whatever the template's code raises."""
    budget = Budget(MAX_SECONDS)
    reset = current.set(budget)
    try:
        parts: list[str] = []
        size = 0
        for part in template.generate(variables):
            budget.check_time()
            size += len(part)
            if size > MAX_CHARACTERS:
                raise TemplateRefusedError(f"the conversation is rendered to more than {MAX_CHARACTERS} characters")
            parts.append(part)
        return joined(parts)
    finally:
        current.reset(reset)


def _demand(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise SecurityError("the text is too long")


def _safe(value: Any) -> str:
    return str(value)  # there is no HTML here, and Jinja's would escape what it is added to


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML.
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None and separators is None:
        return encoder.encode(value)
    if max(len(text) if isinstance(text, str) else text for text in (indent or 0, *(separators or ()))) > MAX_INDENT:
        raise SecurityError("the text that separates values is too long")
    size, parts = 0, []
    for part in encoder.iterencode(value):  # every line may be long
        current.get().check_time()
        size += len(part)
        _demand(size)
        parts.append(part)
    return "".join(parts)


@pass_environment
def _join(environment: ChatEnvironment, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    parts = list(map(str, value))
    check_call("join", d, (parts,))
    _demand(sum(map(len, parts)))
    return Written(d, written_by_template(d)).join(parts)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusedError(message)


def _strftime_now(layout: str) -> str:
    if len(layout) > MAX_LAYOUT:
        raise SecurityError("the layout of the time is too long")
    return datetime.now().strftime(layout)


class _GenerationBlock(Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares a plain set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))
