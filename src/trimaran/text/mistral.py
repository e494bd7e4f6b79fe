"""The chat format of Mistral's tekken tokenizers, versions 7, 11 and 13, for checkpoints without a Jinja template.

Source: what ``mistral_common`` encodes (``InstructTokenizerV7``, ``V11``, ``V13`` and their normalizers). Neighbouring
messages of one role are one, but for system messages and results; version 13 tells tools at the first user message and
no longer writes the ids of calls, earlier ones tell them at the last.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from trimaran.text.budget import TemplateRefusedError
from trimaran.text.chat_messages import Wants
from trimaran.text.written import Written, joined, literal

VERSIONS = (7, 11, 13)
TOKENS = (
    "<s></s>[INST][/INST][SYSTEM_PROMPT][/SYSTEM_PROMPT][AVAILABLE_TOOLS][/AVAILABLE_TOOLS]"
    "[TOOL_CALLS][CALL_ID][ARGS][TOOL_RESULTS][TOOL_CONTENT][/TOOL_RESULTS]"
)


class Mistral:
    """Renders for one version. The assistant's turn begins right after ``[/INST]``: there is no generation prompt."""

    reads = frozenset({"tools"})
    wants = Wants(objects=True)

    def __init__(self, version: int) -> None:
        assert version in VERSIONS
        self._version = version
        self.source = TOKENS if version > 7 else TOKENS.replace("[ARGS]", "")

    def run(self, variables: dict[str, Any]) -> Written:
        messages = list(_merged(variables["messages"], in_order_of_calls=self._version > 7))
        users = [at for at, message in enumerate(messages) if message["role"] == "user"]
        with_tools = users[0 if self._version == 13 else -1] if users else None
        parts: list[str] = [literal("<s>")]
        for at, message in enumerate(messages):
            if at == with_tools and variables.get("tools"):
                parts += _bracketed("AVAILABLE_TOOLS", _tools(variables["tools"]))
            parts += self._message(message)
        return joined(parts)

    def _message(self, message: Mapping[str, Any]) -> Iterator[str]:
        role, content = message["role"], message["content"]
        if role == "system":
            yield from _bracketed("SYSTEM_PROMPT", content)
        elif role == "user":
            yield from _bracketed("INST", content)
        elif role == "assistant":
            if not content and not message["tool_calls"]:
                raise TemplateRefusedError("an assistant's message needs content or tool_calls")
            yield content.rstrip(" ")
            yield from self._calls(message["tool_calls"])
            yield literal("</s>")
        elif self._version == 13:
            yield from _bracketed("TOOL_RESULTS", content)
        else:
            yield from (literal("[TOOL_RESULTS]"), _call_id(message), literal("[TOOL_CONTENT]"))
            yield from (content, literal("[/TOOL_RESULTS]"))

    def _calls(self, calls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        if self._version == 7:
            if calls:
                yield literal("[TOOL_CALLS]")
                yield _json([{**call["function"], **({"id": call["id"]} if call.get("id") else {})} for call in calls])
            return
        for call in calls:
            yield from (literal("[TOOL_CALLS]"), call["function"]["name"])
            if self._version == 11 and call.get("id"):
                yield from (literal("[CALL_ID]"), call["id"])
            yield from (literal("[ARGS]"), _json(call["function"]["arguments"]))


def _merged(messages: Sequence[Mapping[str, Any]], *, in_order_of_calls: bool) -> Iterator[Mapping[str, Any]]:
    calls: list[Mapping[str, Any]] = []
    for role, group in groupby(messages, key=lambda message: message["role"]):
        run = list(group)
        if role == "assistant":
            calls = [call for message in run for call in message.get("tool_calls", ())]
        if role in ("system", "tool", "function"):
            if role != "system" and in_order_of_calls:
                order = {call.get("id"): at for at, call in enumerate(calls)}
                run.sort(key=lambda message: order.get(message.get("tool_call_id"), len(order)))
            yield from run
        else:
            content = "\n\n".join(message["content"] for message in run if message["content"])
            yield {"role": role, "content": content, "tool_calls": calls if role == "assistant" else []}


def _bracketed(name: str, content: str) -> Iterator[str]:
    yield from (literal(f"[{name}]"), content, literal(f"[/{name}]"))


def _tools(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = [tool["function"] for tool in tools]
    return _json(
        [
            {
                "type": "function",
                "function": {
                    "name": function["name"],
                    "description": function.get("description") or "",
                    "parameters": function.get("parameters") or {},
                },
            }
            for function in functions
        ]
    )


def _call_id(message: Mapping[str, Any]) -> str:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str):
        raise TemplateRefusedError("the result of a tool call needs a tool_call_id")
    return call_id


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
