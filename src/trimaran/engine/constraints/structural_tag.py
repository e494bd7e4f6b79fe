"""Free text with structures in it, as a grammar: vLLM's ``structural_tag``."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from trimaran.base.errors import RequestError
from trimaran.text.json_schema import embedded_schema


class _Structure(msgspec.Struct, frozen=True):
    begin: str
    end: str
    schema: dict[str, Any] | bool

    def after(self, trigger: str, field: str) -> str:
        """What follows the trigger that ``begin`` begins with."""
        body = f"%json {embedded_schema(self.schema, field)}"
        return " ".join([*_literal(self.begin[len(trigger) :]), body, *_literal(self.end)])


class _StructuralTag(msgspec.Struct, frozen=True):
    structures: list[_Structure]
    triggers: list[str]


def structural_tag(text: str, field: str, control_id: Callable[[str], int | None]) -> str:
    """A Lark grammar for ``text``, JSON with ``structures`` and ``triggers``: after a trigger comes the rest of a
    structure that begins with it, then text again.

    ``control_id`` tells the id of a control token. Raises ``RequestError`` naming ``field``, also when a structure
    begins with no trigger, or a trigger begins no structure.
    """
    try:
        wanted = msgspec.json.decode(text, type=_StructuralTag)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"{field} is no structural tag: {error}", param=field) from None
    heads = []
    rules = []
    for number, trigger in enumerate(wanted.triggers):
        ways = [each.after(trigger, field) for each in wanted.structures if each.begin.startswith(trigger)]
        if not ways:
            raise RequestError(f"{field}: no structure begins with the trigger {trigger!r}", param=field)
        heads.append(f"tag_{number}")
        token = control_id(trigger)
        if token is None:  # the text before it ends where it comes first
            rules.append(f"head_{number}[lazy]: TEXT {json.dumps(trigger)}")
        else:
            rules.append(f"head_{number}: TEXT <[{token}]>")
        rules.append(f"tag_{number}: head_{number} ({' | '.join(ways)})")
    for structure in wanted.structures:
        if not structure.begin.startswith(tuple(wanted.triggers)):
            raise RequestError(f"{field}: {structure.begin!r} begins with none of the triggers", param=field)
    start = f"start: ({' | '.join(heads)})* TEXT" if heads else "start: TEXT"
    return "\n".join(["%llguidance {}", start, *rules, "TEXT: /(.|\\n)*/", ""])


def _literal(text: str) -> list[str]:
    return [json.dumps(text)] if text else []
