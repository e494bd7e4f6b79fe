"""Options of a command, declared once and filled from four places: flags, then environment, then file, then defaults.

A command's options are a frozen dataclass whose fields are made by ``option``. The CLI derives its flags from the
fields, ``TRIMARAN_<FIELD>`` is the variable of each, and a YAML file may set any of them under the field's name (with
dashes or underscores). Whatever the place, a value goes through the same conversion, and an unknown name is an error.
"""

import dataclasses
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from trimaran.base import env
from trimaran.base.errors import ConfigError

T = TypeVar("T")

_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_LIMIT = re.compile(r"[<>]=? \S+")  # at the end of msgspec's message
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG])")


def option(
    default: Any, text: str, *, metavar: str | None = None, choices: tuple[str, ...] = (), secret: bool = False
) -> Any:
    """A field of an options dataclass, described by ``text``.

    ``choices`` are its allowed values, ``metavar`` stands for a value in ``--help``. A ``secret`` is in neither the
    repr nor an error.
    """
    metadata = {"help": text, "metavar": metavar, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def option_types(kind: type) -> dict[str, Any]:
    """The annotated type of every option of ``kind``, by name, in the order of declaration."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def parse_size(text: str) -> int | None:
    """A whole number, perhaps with a size: ``8k`` is 8,000 and ``8K`` 8,192, likewise m/M and g/G; None: it is none."""
    text = text.strip()
    if found := _SIZE.fullmatch(text):
        return int(float(found[1]) * _SIZES[found[2]])
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None


def is_list(annotation: Any) -> bool:
    """True for an option that may be given several times."""
    return get_origin(annotation) is tuple


def scalar_types(annotation: Any) -> set[type]:
    """The plain types inside ``annotation``, without unions and constraints."""
    if get_origin(annotation) in (Union, types.UnionType):
        return set[type]().union(*map(scalar_types, get_args(annotation)))
    if get_origin(annotation) is Annotated:
        return scalar_types(get_args(annotation)[0])
    return {annotation}


def resolve(kind: type[T], *, flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> T:
    """Builds ``kind`` from what was typed (``None``: not typed), ``environ`` and a YAML ``file``, in this precedence.

    Numbers may carry a size: ``8k`` is 8,000 and ``8K`` 8,192, likewise m/M and g/G. In a variable, the items of a list
    are separated by commas. Raises ``ConfigError`` naming the place, the option and what is allowed.
    """
    annotations = option_types(kind)
    env.check_names(environ, annotations)
    values: dict[str, Any] = {}
    if file is not None:
        for name, value in _read(file, annotations).items():
            values[name] = _convert(kind, name, value, annotations[name], f"{name} in {file}")
    for name, annotation in annotations.items():
        variable = env.option_variable(name)
        if text := environ.get(variable):  # an empty variable is as good as none
            items = [item.strip() for item in text.split(",") if item.strip()] if is_list(annotation) else text
            values[name] = _convert(kind, name, items, annotation, variable)
    for name, value in flags.items():
        if value is not None:
            values[name] = _convert(kind, name, value, annotations[name], "--" + name.replace("_", "-"))
    return kind(**values)


def _read(file: Path, annotations: Mapping[str, Any]) -> dict[str, Any]:
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
        root = yaml.compose(text, yaml.SafeLoader)  # which still has every key, unlike a dict
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold option names and values, not a {type(content).__name__}")
    assert isinstance(root, yaml.MappingNode)
    names = [str(key.value).replace("-", "_") for key, _ in root.value]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{name} is set twice in {file}")
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in annotations:
            raise ConfigError(f"unknown option {key!r} in {file}{env.nearest(name, annotations)}")
        values[name] = value
    return values


def _in_words(annotation: Any) -> str:
    if is_list(annotation):
        return "text or a list of texts"
    return " or ".join(word for kind, word in _WORDS.items() if kind in scalar_types(annotation))


def _convert(kind: type, name: str, value: Any, annotation: Any, place: str) -> Any:
    """One value as its field's type; text is parsed, so that flags, variables and files accept the same spellings."""
    if is_list(annotation) and isinstance(value, str):
        value = [value]
    accepted = scalar_types(annotation)
    if isinstance(value, str) and bool in accepted:
        return env.truth(place, value)
    if isinstance(value, str) and int in accepted and _SIZE.fullmatch(value.strip()):
        value = parse_size(value)
    field = next(f for f in dataclasses.fields(kind) if f.name == name)
    try:
        converted = msgspec.convert(value, annotation, strict=False)
    except msgspec.ValidationError as error:
        shown = repr(value) if field.repr else "the value"
        limit = _LIMIT.search(str(error))
        expected = _in_words(annotation) + (f" {limit[0]}" if limit else "")
        raise ConfigError(f"{place}: {shown} is not valid: expected {expected}") from None
    choices = field.metadata["choices"]
    if choices and converted is not None and converted not in choices:
        raise ConfigError(f"{place}: {value!r} is not one of {', '.join(choices)}")
    return converted
