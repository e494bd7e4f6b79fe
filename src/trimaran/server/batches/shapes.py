"""Files and batches as the OpenAI API shows them (API reference, "Files" and "Batch"). Times are Unix seconds."""

from typing import Literal

import msgspec

Purpose = Literal["batch", "batch_output"]
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
UNFINISHED: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a batch's input; ``line`` is its place in the file, from 1 on."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Finding]


class Counts(msgspec.Struct, frozen=True):
    """Requests of a batch. Those that have a line in its files: ``completed`` in one, ``failed`` in the other."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Cached(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class Reasoned(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens of all answers so far."""

    input_tokens: int = 0
    input_tokens_details: Cached = Cached()
    output_tokens: int = 0
    output_tokens_details: Reasoned = Reasoned()
    total_tokens: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str
    errors: Findings | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = Counts()
    usage: Usage = Usage()
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
