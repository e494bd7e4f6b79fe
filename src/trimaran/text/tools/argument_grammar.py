"""Arguments as a grammar: JSON by the function's schema, or one value after another where a format tags them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import ceil, floor
from typing import Any

from trimaran.text.json_schema import format_pattern
from trimaran.text.tools.annotations import without_annotations
from trimaran.text.tools.argument_types import argument_types, json_value, resolved
from trimaran.text.tools.formats import TaggedCall
from trimaran.text.tools.lark import ANY, SEPARATORS, Lark, either, escaped_slashes, holds, inline_refs, quoted
from trimaran.text.tools.reader import parts_of
from trimaran.text.tools.schema_check import refusal

ROOT = "#/$defs/arguments"  # where a function's schema stands when a part of it is looked at
MAX_LENGTH = 1000  # of a text with a limit: following a longer count takes more than a matcher may
_COUNTS = ("minProperties", "maxProperties")
_OBJECT = frozenset(
    ("type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id", *_COUNTS)
)
_STRING = frozenset(("type", "enum", "const", "minLength", "maxLength", "pattern", "format"))
_LOOSE = frozenset(("type", "anyOf"))
_TYPE = frozenset(("type",))
_FIRST = {"object": r"\{", "array": r"\[", "number": "0-9-", "integer": "0-9-"}  # what JSON of a type begins with


_ANCHORS = re.compile(r"(?<!\\)(?<!\[)\^|(?<!\\)\$|\\[bB]")  # inside a pattern they would be of the text around


class UnenforcedError(Exception):
    """A schema asks for what a grammar cannot hold an answer to; the message names it."""


def closed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments: such as it does not name are not allowed, unless it says otherwise."""
    open_ended = {"$ref", "anyOf", "oneOf", "allOf", "patternProperties", "additionalProperties"} & parameters.keys()
    more = {} if open_ended else {"additionalProperties": False}
    said = {key: value for key, value in parameters.items() if key != "x-guidance"}
    return {"type": "object", **without_annotations(said), **more}


class ArgumentGrammar:
    """Writes the arguments of one function. What cannot be enforced is passed over where ``lenient`` says so; else it
    raises ``UnenforcedError``.
    """

    def __init__(self, lark: Lark, parameters: Mapping[str, Any], *, lenient: bool) -> None:
        self._lark = lark
        self._parameters = closed(parameters)
        self._lenient = lenient
        self._options = {**SEPARATORS, "lenient": lenient}
        self._properties: Mapping[str, Any] = self._parameters.get("properties") or {}

    def json(self) -> str:
        """All arguments as one JSON object."""
        return self._json(self._parameters, {"type": "object"})

    def call(self, name: str, key: str) -> str:
        """A JSON object with the function's name, and all arguments under ``key``."""
        arguments = self._enforceable(self._parameters, {"type": "object"})
        schema = {
            "type": "object",
            "properties": {"name": {"const": name}, key: {"$ref": ROOT}},
            "required": ["name", key],
            "additionalProperties": False,
            "$defs": {"arguments": inline_refs(arguments, ROOT)},
        }
        return self._lark.json(schema, self._options)

    def tagged(self, call: TaggedCall) -> str:
        """The arguments in the order of the schema, each with its marks."""
        self._only(self._parameters, _OBJECT, "")
        return self._counted(list(self._arguments(call)))

    def _arguments(self, call: TaggedCall) -> Iterator[tuple[str, bool]]:
        """A rule for each argument that can be written, and whether it is required."""
        required = self._parameters.get("required")
        needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        for name in (*self._properties, *(name for name in needed if name not in self._properties)):
            if name != name.strip() or "\n" in name or any(parts_of(key)[0] in name for key, _ in call.keys):
                self._refuse(f"an argument called {name!r:.80}")
                continue
            yield self._lark.rule(self._argument(call, name)), name in needed

    def _counted(self, arguments: list[tuple[str, bool]]) -> str:
        """Those that are required and any of the others, as many as the schema says."""
        all_, needed = len(arguments), sum(required for _, required in arguments)
        low, high = (self._parameters.get(key) for key in _COUNTS)
        least = max(needed, ceil(min(all_ + 1, low))) if isinstance(low, int | float) else needed
        most = floor(max(-1, min(all_, high))) if isinstance(high, int | float) else all_
        if least > most:
            self._refuse(f"{' and '.join(_COUNTS)} for {all_} arguments of which {needed} are required")
        if least > most or (least == needed and most == all_):
            return " ".join(one if required else one + "?" for one, required in arguments)
        top = least if most == all_ else most + 1  # so many or more: it makes no difference
        after: list[str | None] = ["" if least <= count <= most else None for count in range(top + 1)]
        for place in range(all_ - 1, -1, -1):  # what may follow where so many have been written
            one, required = arguments[place]
            before: list[str | None] = []
            for count in range(min(place, top) + 1):
                ways = [] if (rest := after[min(count + 1, top)]) is None else [f"{one} {rest}"]
                if not required and (rest := after[count]) is not None:
                    ways.append(rest or '""')
                before.append(self._lark.rule(either(ways)) if ways else None)
            after = before
        assert after[0] is not None, "some number of arguments is allowed"
        return after[0]

    def _argument(self, call: TaggedCall, name: str) -> str:
        lark = self._lark
        types = argument_types(self._parameters, name)
        ways = []
        for key, kind in call.keys:
            between = lark.literal(key + call.padding)
            if kind == "string" and "string" in types:
                ways.append(f"{between} {self._text(call, name)}")
            elif kind == "json" and types != {"string"}:
                ways.append(f"{between} {self._value(call, name, types)}")
            elif kind is None:
                ways.append(f"{between} {self._untyped(call, name, types)}")
        return f"{lark.literal(call.argument)} {lark.plain(name)} {either(ways)}"

    def _untyped(self, call: TaggedCall, name: str, types: frozenset[str]) -> str:
        """A value and its end, where nothing but the schema tells text from JSON (``argument_types.py``)."""
        if types == {"string"}:
            return self._text(call, name)
        if "string" not in types:
            return self._value(call, name, types)
        schema = self._schema(name)
        if schema.keys() <= _LOOSE and _bare(schema.get("anyOf", [])):  # whatever it is, it is allowed
            return self._up_to(call)
        ways = [self._value(call, name, types)]
        if (texts := _texts(schema)) is not None:
            ways += self._one_of(call, [text for text in texts if json_value(text, types) is None])
        else:
            self._only(_text_branch(schema), _TYPE, f"the argument {name!r}: ")
            first = "".join(sorted({_FIRST[kind] for kind in types if kind in _FIRST}))
            ways.append(self._up_to(call, f"[^ \\t\\r\\n{first}]{ANY}*"))
        return either(ways)

    def _text(self, call: TaggedCall, name: str) -> str:
        """A string as it is, and its end."""
        schema = _text_branch(self._schema(name))
        self._only(schema, _STRING, f"the argument {name!r}: ")
        if (texts := _texts(schema)) is not None:
            return either(self._one_of(call, texts))
        pattern = self._pattern(schema, f"the argument {name!r}: ")
        return self._up_to(call) if pattern is None else self._up_to(call, f"({pattern}){quoted(call.padding)}")

    def _one_of(self, call: TaggedCall, texts: Iterable[str]) -> Iterator[str]:
        """Each of ``texts`` and its end, but for such as would hold the end."""
        end = self._lark.literal(call.padding + call.value_end)
        for text in texts:
            if parts_of(call.value_end)[0] in text:
                self._refuse(f"the value {text!r:.80}")
            else:
                yield f"{self._lark.plain(text)} {end}"

    def _up_to(self, call: TaggedCall, pattern: str = f"{ANY}*") -> str:
        """A text that matches ``pattern``, and the end of a value."""
        end = parts_of(call.value_end)[0]
        return f"{self._lark.up_to(end, pattern)} {self._lark.literal(call.value_end.removeprefix(end))}"

    def _value(self, call: TaggedCall, name: str, types: frozenset[str]) -> str:
        """An argument's value as JSON, and its end."""
        schema = self._properties.get(name, {})
        fallback = {"type": sorted(types)}
        if holds(schema, "$ref"):
            root = inline_refs(self._parameters, ROOT)
            schema = root["properties"][name]
            schema = {**schema, "$defs": {**schema.get("$defs", {}), "arguments": root}}
        elif isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        return f"{self._json(schema, fallback)} {self._lark.literal(call.padding + call.value_end)}"

    def _schema(self, name: str) -> dict[str, Any]:
        schema = self._properties.get(name)
        return resolved(schema, self._parameters) if isinstance(schema, dict) else {}

    def _pattern(self, schema: Mapping[str, Any], where: str) -> str | None:
        """A regular expression for a string that ``schema`` limits."""
        pattern, least, most = schema.get("pattern"), schema.get("minLength", 0), schema.get("maxLength")
        if (form := schema.get("format")) is not None:
            of_form = format_pattern(form)
            if of_form is None or pattern is not None or least or most is not None:
                self._refuse(f"{where}format {form!r:.80}{'' if of_form is None else ' together with other limits'}")
            else:
                return of_form
        if isinstance(pattern, str):
            if least or most is not None:
                self._refuse(f"{where}pattern together with a length")
            begin, end = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
            inner = pattern[begin : len(pattern) - end]
            if _ANCHORS.search(inner) or refusal({"type": "string", "pattern": inner}, self._options):
                self._refuse(f"{where}pattern {pattern!r:.80}")
                return None
            return f"{'' if begin else ANY + '*'}({escaped_slashes(inner)}){'' if end else ANY + '*'}"
        if not (least or most is not None) or not isinstance(least, int) or not isinstance(most, int | None):
            return None
        if max(least, most or 0) > MAX_LENGTH:
            self._refuse(f"{where}a length above {MAX_LENGTH:,}")
            return None
        return f"{ANY}{{{least},{'' if most is None else most}}}"

    def _json(self, schema: Mapping[str, Any], fallback: Mapping[str, Any]) -> str:
        return self._lark.json(self._enforceable(schema, fallback), self._options)

    def _enforceable(self, schema: Mapping[str, Any], fallback: Mapping[str, Any]) -> Mapping[str, Any]:
        """``schema``, or ``fallback`` where it cannot be enforced and need not be."""
        why = refusal(schema, self._options)
        if why is None:
            return schema
        self._refuse(why)
        return fallback

    def _only(self, schema: Mapping[str, Any], known: frozenset[str], where: str) -> None:
        for key in schema:
            if key not in known:
                self._refuse(f"{where}{key}")

    def _refuse(self, what: str) -> None:
        if not self._lenient:
            raise UnenforcedError(what)


def _bare(branches: Any) -> bool:
    """Whether none of a union's branches says more than a type."""
    return isinstance(branches, list) and all(
        isinstance(branch, dict) and branch.keys() <= _TYPE for branch in branches
    )


def _text_branch(schema: dict[str, Any]) -> dict[str, Any]:
    """What ``schema`` says of strings: of a union the branch that is for them, if there is one."""
    branches = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(branches, list):
        return schema
    texts = [branch for branch in branches if isinstance(branch, dict) and branch.get("type") == "string"]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
    return {**rest, **texts[0]} if len(texts) == 1 else schema


def _texts(schema: Mapping[str, Any]) -> list[str] | None:
    """The strings in the list of all values, if ``schema`` has one."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else None
