"""The two files that a batch leaves behind: answers, and errors (OpenAI API reference, "The request output object")."""

import os
import secrets
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from trimaran.server.batches.batch_store import NOTHING, Answered, BatchStore, Known
from trimaran.server.batches.call import Answer
from trimaran.server.batches.file_store import FileStore, NewFile
from trimaran.server.batches.lines import custom_id, numbered
from trimaran.server.batches.shapes import Cached, Finding, Reasoned, Usage

Unanswered = Literal["expired", "cancelled"]
_WHY: dict[Unanswered, str] = {
    "expired": "This request could not be executed before the completion window expired.",
    "cancelled": "This request was not executed because its batch was cancelled.",
}


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    custom_id: str
    response: _Response | None = None
    error: _Error | None = None


class _Spent(msgspec.Struct, frozen=True):
    """Tokens as the endpoints tell of them: chats and completions in other words than responses."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: dict[str, Any] | None = None
    output_tokens_details: dict[str, Any] | None = None


class _Told(msgspec.Struct, frozen=True):
    usage: _Spent | None = None


def answered(line: int, name: str, answer: Answer) -> Answered:
    """The line of a file for the request ``name`` of line ``line``."""
    completed = answer.status == 200
    request_id = answer.request_id or f"req-{secrets.token_hex(12)}"
    result = _Result(id=_id(), custom_id=name, response=_Response(answer.status, request_id, msgspec.Raw(answer.body)))
    return Answered(line, completed, msgspec.json.encode(result), _usage(answer.body) if completed else NOTHING)


def refused(line: int, text: bytes, finding: Finding) -> Answered:
    """The line of a file for a line that cannot become a request any more."""
    result = _Result(id=_id(), custom_id=custom_id(text), error=_Error(finding.code, finding.message))
    return Answered(line, False, msgspec.json.encode(result))


@dataclass(frozen=True)
class Outcome:
    """What a batch leaves; ``unanswered``: how many lines of ``error`` nobody answered."""

    output: NewFile | None
    error: NewFile | None
    unanswered: int


def write(known: Known, batches: BatchStore, files: FileStore, why: Unanswered | None, body_bytes: int) -> Outcome:
    """Writes both files; with ``why``, a line for each request that was not answered. Raises ``OSError``."""
    with ExitStack() as undo:
        output, error = (_Sheet(files.arriving(), undo) for _ in range(2))
        seen = set()
        for one in batches.answers(known):
            (output if one.completed else error).add(one.answer)
            seen.add(one.line)
        unanswered = 0
        if why is not None:
            with suppress(FileNotFoundError):  # somebody has deleted it from the folder
                for number, text in numbered(files.path(known.batch.input_file_id), body_bytes):
                    if number not in seen:
                        error.add(msgspec.json.encode(_unanswered(text, why)))
                        unanswered += 1
        made = Outcome(output.done(known, "output"), error.done(known, "error"), unanswered)
        undo.pop_all()
    return made


class _Sheet:
    """A file that is being written; none if nothing is added."""

    def __init__(self, path: Path, undo: ExitStack) -> None:
        self._path, self._undo = path, undo
        self._file: BinaryIO | None = None

    def add(self, line: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("xb")
            self._undo.callback(self._discard)
        self._file.write(line + b"\n")

    def done(self, known: Known, kind: str) -> NewFile | None:
        if self._file is None:
            return None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return NewFile(self._path, f"{known.batch.id}_{kind}.jsonl", "batch_output", known.kept_seconds)

    def _discard(self) -> None:
        assert self._file is not None
        with suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


def _unanswered(text: bytes, why: Unanswered) -> _Result:
    return _Result(id=_id(), custom_id=custom_id(text), error=_Error(f"batch_{why}", _WHY[why]))


def _id() -> str:
    return f"batch_req_{secrets.token_hex(12)}"


def _usage(body: bytes) -> Usage:
    spent = msgspec.json.decode(body, type=_Told).usage or _Spent()
    read = spent.prompt_tokens + spent.input_tokens
    written = spent.completion_tokens + spent.output_tokens
    cached, reasoned = (
        (one or other or {}).get(name) or 0
        for one, other, name in (
            (spent.prompt_tokens_details, spent.input_tokens_details, "cached_tokens"),
            (spent.completion_tokens_details, spent.output_tokens_details, "reasoning_tokens"),
        )
    )
    return Usage(read, Cached(cached), written, Reasoned(reasoned), read + written)
