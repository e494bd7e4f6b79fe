"""The chat format of DeepSeek-V3.2, which ships no template.

Source: what ``encoding_dsv32.py`` of the model's repository writes, as SGLang and vLLM carry it. Tools stand in the
first system message. A thought is kept only after the last user message, where calls of tools continue it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimaran.text.budget import TemplateRefusedError
from trimaran.text.chat_messages import Wants
from trimaran.text.written import Written, joined, literal

TOOLS = """\
## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to \
the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should \
use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types \
(numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. \
Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
"""
BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"


class DeepSeekV32:
    """Renders as the model was trained; thinks when ``thinking`` or ``enable_thinking`` says so."""

    source = BEGIN + END + USER + ASSISTANT + TOOLS
    reads = frozenset({"tools", "thinking", "enable_thinking"})
    wants = Wants(objects=True)

    def run(self, variables: dict[str, Any]) -> Written:
        thinking = bool(variables.get("thinking") or variables.get("enable_thinking"))
        messages: list[Any] = variables["messages"]
        tools = variables.get("tools")
        if tools and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": ""}, *messages]
        conversation = _Conversation(messages, thinking, bool(variables["add_generation_prompt"]))
        parts: list[str] = [literal(BEGIN)]
        for at in range(len(messages)):
            parts += conversation.message(at)
            if at == 0 and tools:
                parts += _tools(tools)
        return joined(parts)


class _Conversation:
    def __init__(self, messages: Sequence[Mapping[str, Any]], thinking: bool, prompt: bool) -> None:
        self._messages = messages
        self._thinking = thinking
        self._prompt = prompt
        self._last_user = max((at for at, m in enumerate(messages) if m["role"] == "user"), default=-1)

    def message(self, at: int) -> Iterator[str]:
        message = self._messages[at]
        role, content = message["role"], message["content"] or ""
        if role == "system":
            yield content
        elif role == "user":
            yield from (literal(USER), content)
            yield from self._turn(at, ASSISTANT, at == self._last_user)
        elif role == "assistant":
            yield from self._assistant(at, message, content)
        else:
            yield from self._result(at, content)

    def _turn(self, at: int, before: str, fresh: bool) -> Iterator[str]:
        """The beginning of the assistant's next words."""
        if self._prompt or at + 1 < len(self._messages):
            yield literal(before + ("<think>" if fresh and self._thinking else "</think>"))

    def _assistant(self, at: int, message: Mapping[str, Any], content: str) -> Iterator[str]:
        thought, calls = message.get("reasoning_content") or "", message.get("tool_calls")
        if self._thinking and at > self._last_user:
            if not (thought or calls):
                raise TemplateRefusedError(
                    f"messages[{at}]: with thinking, an assistant's message after the last user's needs"
                    " reasoning_content or tool_calls"
                )
            yield from (thought, literal("</think>"))
        yield content
        if calls:
            yield literal("\n\n<｜DSML｜function_calls>\n")
            for call in calls:
                yield from _call(call["function"])
            yield literal("</｜DSML｜function_calls>")
        yield literal(END)

    def _result(self, at: int, content: str) -> Iterator[str]:
        called = at - 1
        while called >= 0 and self._messages[called]["role"] == "tool":
            called -= 1
        calls = self._messages[called].get("tool_calls") if called >= 0 else None
        if not calls or at - called > len(calls):
            raise TemplateRefusedError(f"messages[{at}] is the result of a tool call that no message before it makes")
        if at - called == 1:
            yield literal("\n\n<function_results>")
        yield from (literal("\n<result>"), content, literal("</result>"))
        if at - called == len(calls):
            yield literal("\n</function_results>")
            yield from self._turn(at, "\n\n", at >= self._last_user)


def _tools(tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    schemas = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    yield from (literal("\n\n" + TOOLS), schemas, literal("\n</functions>\n"))


def _call(function: Mapping[str, Any]) -> Iterator[str]:
    yield from (literal('<｜DSML｜invoke name="'), function["name"], literal('">\n'))
    for at, (name, value) in enumerate(function["arguments"].items()):
        if at:
            yield literal("\n")
        yield from (literal('<｜DSML｜parameter name="'), name)
        yield literal(f'" string="{"true" if isinstance(value, str) else "false"}">')
        yield value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield literal("</｜DSML｜parameter>")
    yield literal("\n</｜DSML｜invoke>\n")
