"""Answers and stream events of the Messages API, as values that encode to exactly its JSON."""

from typing import Any, Literal

import msgspec

from trimaran.server import dataplane
from trimaran.server.errors import ErrorAnswer
from trimaran.text.choice import Finish

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Thinking(msgspec.Struct, frozen=True, tag="thinking"):
    """``signature`` is empty: nothing here signs thoughts."""

    thinking: str
    signature: str = ""


class ToolUse(msgspec.Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


Block = Text | Thinking | ToolUse


class Usage(msgspec.Struct, frozen=True):
    """``input_tokens`` are those that were not in the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class Message(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """``malformed_tool_calls`` is ours, as in chats."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage
    malformed_tool_calls: list[str] | msgspec.UnsetType = msgspec.UNSET


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, tag="message_start"):
    message: Message


class BlockStart(msgspec.Struct, frozen=True, tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking_delta"):
    thinking: str


class InputDelta(msgspec.Struct, frozen=True, tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, tag="content_block_stop"):
    index: int


class Ending(msgspec.Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag="message_delta"):
    delta: Ending
    usage: Usage
    malformed_tool_calls: list[str] | msgspec.UnsetType = msgspec.UNSET


class MessageStop(msgspec.Struct, frozen=True, tag="message_stop"):
    pass


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class ErrorBody(msgspec.Struct, frozen=True):
    """``param`` and ``code`` are ours, as in chats."""

    type: str
    message: str
    param: str | None = None
    code: str | None = None


class Error(msgspec.Struct, frozen=True, tag="error"):
    error: ErrorBody


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_of(answer: ErrorAnswer) -> Error:
    """The same error in the shape of this API."""
    kind = _TYPES.get(answer.status, "invalid_request_error" if answer.status < 500 else "api_error")
    return Error(ErrorBody(kind, answer.error.message, answer.error.param, answer.error.code))


def is_theirs(path: str) -> bool:
    """Whether a request to ``path`` is one of this API."""
    return path.startswith("/v1/messages")


def error_body(path: str, answer: ErrorAnswer) -> bytes:
    """``answer``'s body in the shape of the API that ``path`` belongs to."""
    return msgspec.json.encode(error_of(answer)) if is_theirs(path) else answer.body


def usage(counts: dataplane.Usage) -> Usage:
    return Usage(counts.prompt - counts.cached, counts.completion, counts.cached)


def ending(finish: Finish, stop: str | int | None, calls: int) -> Ending:
    """Why an answer stopped."""
    if finish == "length":
        return Ending("max_tokens", None)
    if isinstance(stop, str):
        return Ending("stop_sequence", stop)
    return Ending("tool_use" if calls else "end_turn", None)
