"""Pieces of a grammar in llguidance's dialect of Lark (https://github.com/guidance-ai/llguidance, docs/syntax.md).

Texts of a format are written with control tokens by their ids, ``<[5]>``, and all else as strings.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trimaran.text.control import ControlTokens
from trimaran.text.json_schema import exact_schema

ANY = r"(.|\n)"
SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as templates write JSON

_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")  # Rust's regex has meanings for other characters after a backslash


class Lark:
    """A grammar that grows rule by rule; rules are numbered, so that their names never meet."""

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._rules: list[str] = []
        self._names: dict[str, str] = {}

    def rule(self, body: str) -> str:
        """The name of a rule that says ``body``; the same for the same body."""
        return self._add("r", body)

    def terminal(self, pattern: str) -> str:
        """The name of a terminal that matches the regular expression, as long as it can."""
        return self._add("T", f"/{pattern}/")

    def text(self, start: str) -> str:
        """The grammar, which begins with ``start``."""
        return "\n".join((f"start: {start}", *self._rules, ""))

    def literal(self, text: str) -> str:
        """``text`` and nothing else."""
        return " ".join(
            f"<[{piece}]>" if isinstance(piece, int) else _string(piece) for piece in self._control.split(text)
        )

    def plain(self, text: str) -> str:
        """``text``, in which nothing is a control token."""
        return _string(text) if text else ""

    def is_text(self, text: str) -> bool:
        """Whether ``text`` of a format has no control tokens."""
        return all(isinstance(piece, str) for piece in self._control.split(text))

    def up_to(self, text: str, pattern: str = f"{ANY}*") -> str:
        """A text that matches ``pattern`` and the first ``text`` after it, which is not in it."""
        pieces = list(self._control.split(text))
        first = pieces[0] if isinstance(pieces[0], str) else ""
        rest = pieces[1:] if first else pieces
        if not rest:
            earlier = "" if pattern == f"{ANY}*" else f" & ~/{ANY}*{quoted(first)}{ANY}+/"
            return self._add("l", f"/{pattern}{quoted(first)}/{earlier}", "[lazy]")
        after = " ".join(f"<[{piece}]>" if isinstance(piece, int) else _string(piece) for piece in rest)
        return f"{self._add('T', f'/{pattern}{quoted(first)}/')}{'' if first else '?'} {after}"

    def without(self, texts: Iterable[str]) -> str:
        """Any text that holds none of ``texts``; those with control tokens cannot be in a text."""
        plain = [quoted(text) for text in texts if self.is_text(text)]
        if not plain:
            return self.terminal(f"{ANY}*")
        return self._add("T", f"/{ANY}*/ & ~/{ANY}*({'|'.join(plain)}){ANY}*/")

    def json(self, schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """JSON that ``schema`` allows."""
        return self.rule(
            "%json " + json.dumps({**exact_schema(dict(schema)), "x-guidance": dict(options)}, ensure_ascii=False)
        )

    def _add(self, kind: str, body: str, attributes: str = "") -> str:
        key = kind + body
        if key not in self._names:
            self._names[key] = f"{kind}{len(self._names)}"
            self._rules.append(f"{self._names[key]}{attributes}: {body}")
        return self._names[key]


def quoted(text: str) -> str:
    """``text`` as a regular expression of Rust's."""
    return _META.sub(r"\\\g<0>", text).replace("\n", r"\n")


def escaped_slashes(pattern: str) -> str:
    """A regular expression as it must be written between slashes."""
    return re.sub(r"\\.|/", lambda match: "\\/" if match[0] == "/" else match[0], pattern, flags=re.DOTALL)


def either(bodies: Iterable[str]) -> str:
    """One of ``bodies``."""
    return "( " + " | ".join(bodies) + " )"


def inline_refs(schema: Any, place: str) -> Any:
    """``schema`` with its references to itself turned to where it will stand: ``#/a`` to ``place/a``."""
    if isinstance(schema, list):
        return [inline_refs(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else inline_refs(value, place)
        for key, value in schema.items()
    }


def holds(schema: Any, key: str) -> bool:
    """Whether ``key`` is anywhere in ``schema``."""
    if isinstance(schema, list):
        return any(holds(item, key) for item in schema)
    return isinstance(schema, dict) and (key in schema or any(holds(item, key) for item in schema.values()))


def _string(text: str) -> str:
    """Line breaks apart: a lexer that has read "\\n<" takes "\\n</" for the only word that may go on from there."""
    return " ".join(json.dumps(part, ensure_ascii=False) for part in re.split(r"(\n+)", text) if part)
