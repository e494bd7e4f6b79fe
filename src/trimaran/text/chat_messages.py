"""What a chat message may be, before a template sees it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimaran.base.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def check_messages(messages: Sequence[Mapping[str, Any]], *, developer: bool) -> list[dict[str, Any]]:
    """Copies of the messages, with lists of text parts joined by line breaks: templates of text models want one string.

    Roles are limited to those of the OpenAI API, since templates build control tokens out of them; unless a template
    knows ``developer``, it gets ``system`` for it. Raises ``RequestError`` that names the place.
    """
    if not messages:
        raise RequestError("a conversation needs at least one message", param="messages")
    checked = [_check(message, f"messages[{index}]") for index, message in enumerate(messages)]
    if not developer:
        checked = [{**m, "role": "system"} if m["role"] == "developer" else m for m in checked]
    return checked


def contents(messages: Sequence[Any]) -> Iterator[str]:
    """The texts in messages that may be malformed yet."""
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str):
                yield text


def _check(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object with role and content", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}, not {role!r:.50}", param=f"{where}.role")
    content = message.get("content")
    if isinstance(content, list):
        parts = [_text(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
        return {**message, "content": "\n".join(parts)}
    calls_tools = content is None and role == "assistant" and message.get("tool_calls")
    if not isinstance(content, str) and not calls_tools:
        raise RequestError(f"{where}.content must be text or a list of text parts", param=f"{where}.content")
    return dict(message)


def _text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise RequestError(f"{where} is of type {kind!r:.50}; this model takes text only", param=where)
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text must be a string", param=f"{where}.text")
    return text
