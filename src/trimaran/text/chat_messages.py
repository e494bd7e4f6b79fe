"""What a chat message may be, and the form in which a template gets it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.base.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True)
class Wants:
    """What a template takes for granted. ``developer``: it knows the role. ``objects``: arguments of tool calls come
    parsed, not as JSON text. ``null``: a message that only calls tools has ``None`` for content, not "". ``calls``: it
    writes calls at all.
    """

    developer: bool = False
    objects: bool = False
    null: bool = False
    calls: bool = True


def check_messages(messages: Sequence[Mapping[str, Any]], wants: Wants) -> list[dict[str, Any]]:
    """Copies of the messages, with lists of text parts joined by line breaks: templates of text models want one string.

    Roles are limited to those of the OpenAI API, since templates build control tokens out of them; unless a template
    knows ``developer``, it gets ``system`` for it. Raises ``RequestError`` that names the place.
    """
    if not messages:
        raise RequestError("a conversation needs at least one message", param="messages")
    return [_check(message, wants, f"messages[{index}]") for index, message in enumerate(messages)]


def contents(messages: Sequence[Any]) -> Iterator[str]:
    """The texts in messages that may be malformed yet."""
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str):
                yield text


def _check(message: Any, wants: Wants, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object with role and content", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}, not {role!r:.50}", param=f"{where}.role")
    checked = dict(message)
    if role == "developer" and not wants.developer:
        checked["role"] = "system"
    calls = message.get("tool_calls")
    if calls:
        if not wants.calls:
            why = "the model's chat template leaves calls of tools out"
            raise RequestError(f"{where}.tool_calls: {why}", param=f"{where}.tool_calls", code="unsupported")
        checked["tool_calls"] = _calls(calls, wants.objects, f"{where}.tool_calls")
    else:
        checked.pop("tool_calls", None)  # templates ask whether there is a list, not whether it is empty
    checked["content"] = _content(message.get("content"), f"{where}.content")
    if checked["content"] is None:
        if not (calls and role == "assistant"):
            raise RequestError(f"{where}.content must be text or a list of text parts", param=f"{where}.content")
        checked["content"] = None if wants.null else ""
    return checked


def _content(content: Any, where: str) -> str | None:
    if isinstance(content, list):
        return "\n".join(_text(part, f"{where}[{index}]") for index, part in enumerate(content))
    if content is None or isinstance(content, str):
        return content
    raise RequestError(f"{where} must be text or a list of text parts", param=where)


def _text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise RequestError(f"{where} is of type {kind!r:.50}; this model takes text only", param=where)
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text must be a string", param=f"{where}.text")
    return text


def _calls(calls: Any, objects: bool, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{where} must be a list", param=where)
    return [_call(call, objects, f"{where}[{index}]") for index, call in enumerate(calls)]


def _call(call: Any, objects: bool, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} must be an object with function.name and function.arguments", param=where)
    where = f"{where}.function.arguments"
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # as the API has it
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where} is not JSON: {error}", param=where) from None
    else:
        parsed = {} if arguments is None else arguments
    if not isinstance(parsed, Mapping):
        raise RequestError(f"{where} must be a JSON object", param=where)
    if objects:
        arguments = parsed
    elif not isinstance(arguments, str):
        arguments = json.dumps(parsed, ensure_ascii=False)
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}
