"""The lines of a batch's input: ``{"custom_id", "method", "url", "body"}``, a JSON object each (OpenAI, Batch guide).

What is looked at here is what a line needs to become a request. Whether that is a good one, its route says.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from trimaran.server.batches.shapes import Finding

MOST_LINES = 50_000  # as in the OpenAI API
MOST_FINDINGS = 100  # that are told of one file
ID_LENGTH = 512
_FRAME_BYTES = 64 * 1024  # that a line may take beside its body
_BOM = b"\xef\xbb\xbf"
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`")
_MISSING = re.compile(r"^Object missing required field `(.*)`")


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=ID_LENGTH)]
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct, frozen=True):
    """Of a body, what no line may ask for, and whom it asks."""

    model: str
    stream: Any = None
    background: Any = None


@dataclass(frozen=True)
class Rules:
    """What all lines of one batch have in common."""

    endpoint: str
    models: tuple[str, ...]  # names that the one model is served under
    body_bytes: int


class BadLineError(Exception):
    """The line cannot become a request; ``finding`` says why."""

    def __init__(self, code: str, message: str, param: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.finding = Finding(code=code, message=message, param=param, line=line)


def parse(text: bytes, rules: Rules) -> Line:
    """Raises ``BadLineError``."""
    line: Line = _decoded(text, Line, "")
    if (twice := _twice(text)) is not None:
        raise BadLineError("invalid_json_line", f"{twice} is there twice", twice)
    if line.method != "POST":
        raise BadLineError("invalid_method", f"method is {line.method!r:.20}; it must be 'POST'", "method")
    if line.url != rules.endpoint:
        why = f"url is {line.url!r:.80}; it must be the endpoint of the batch, {rules.endpoint!r}"
        raise BadLineError("invalid_url", why, "url")
    if len(line.body) > rules.body_bytes:
        why = f"body has {len(line.body):,} bytes, the limit is {rules.body_bytes:,} (--max-body-bytes)"
        raise BadLineError("body_too_large", why, "body")
    body: _Body = _decoded(bytes(line.body), _Body, "body")
    if body.model not in rules.models:
        why = f"the model {body.model!r:.80} is not served here; ask for {rules.models[0]!r}"
        raise BadLineError("model_not_found", why, "body.model")
    for name in ("stream", "background"):
        if getattr(body, name) not in (None, False):
            why = f"body.{name} is not supported in a batch; leave it out"
            raise BadLineError("unsupported_parameter", why, f"body.{name}")
    return line


def custom_id(text: bytes) -> str:
    """Of a line that ``check`` found nothing wrong with."""
    return msgspec.json.decode(text, type=Line).custom_id


def numbered(path: Path, body_bytes: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers from 1 on.

    Raises ``BadLineError`` at one that is longer than any line may be.
    """
    longest = body_bytes + _FRAME_BYTES
    with path.open("rb") as file:
        number = 0
        while text := file.readline(longest + 1):
            number += 1
            if len(text) > longest:
                why = f"longer than {longest:,} bytes (--max-body-bytes and {_FRAME_BYTES:,}); no later line was read"
                raise BadLineError("line_too_long", why, line=number)
            text = text.removeprefix(_BOM) if number == 1 else text
            if text.strip():
                yield number, text


def check(path: Path, rules: Rules) -> tuple[int, list[Finding]]:
    """How many lines a file has, and what is wrong with it: nothing more than ``MOST_FINDINGS``."""
    known: dict[str, int] = {}
    findings: list[Finding] = []
    total = 0
    try:
        for number, text in numbered(path, rules.body_bytes):
            time.sleep(0)  # whoever else has something to do comes first
            total += 1
            if total > MOST_LINES:
                raise BadLineError("too_many_requests", f"there are more than {MOST_LINES:,} requests")
            try:
                line = parse(text, rules)
                first = known.setdefault(line.custom_id, number)
                if first != number:
                    why = f"custom_id {line.custom_id!r:.80} is that of line {first} too"
                    raise BadLineError("duplicate_custom_id", why, "custom_id")
            except BadLineError as error:
                findings.append(msgspec.structs.replace(error.finding, line=number))
                if len(findings) == MOST_FINDINGS:
                    break
    except BadLineError as error:  # of the file
        findings.append(error.finding)
    if not total and not findings:
        findings.append(Finding(code="empty_file", message="the file has no requests"))
    return total, findings


def _twice(text: bytes) -> str | None:
    """A field that a line, which has all of them, has more than once: of these JSON would keep the last."""
    if all(text.count(f'"{name}"'.encode()) == 1 for name in Line.__struct_fields__):
        return None  # nearly always; else it may be in the body, and only a slower look can tell
    try:
        names = Counter(name for name, _ in json.loads(text, object_pairs_hook=list))
    except (ValueError, RecursionError):  # of the body, which its route will refuse
        return None
    return next((name for name, count in names.items() if count > 1), None)


def _decoded(text: bytes, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise _told(str(error), where) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLineError("invalid_json_line", f"not valid JSON: {error}") from None


def _told(message: str, where: str) -> BadLineError:
    """msgspec's message about a value, in our words; ``where`` is the value's place in the line."""
    place = _PLACE.search(message)
    path = ".".join(filter(None, (where, place[1] if place else "")))
    if found := _UNKNOWN.match(message):
        return BadLineError("unknown_parameter", f"{found[1]} is not a field of a batch's line", found[1])
    if found := _MISSING.match(message):
        name = ".".join(filter(None, (path, found[1])))
        return BadLineError("missing_required_parameter", f"{name} is required", name)
    said = _PLACE.sub("", message)
    subject = path or "the line"
    code = "invalid_type" if ", got" in said else "invalid_value"
    return BadLineError(code, f"{subject}: {said[:1].lower()}{said[1:]}", path or None)
