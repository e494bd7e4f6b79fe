"""Requests of ``/v1/responses``, and what they are as a chat.

An answer's items come back as input of the next request, or are remembered under ``previous_response_id``: what the
assistant thought, said and called one after the other is one message of a chat.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationError

from trimaran.base.errors import RequestError
from trimaran.server.openai import fields
from trimaran.server.openai.body import Body, OneFinding, values_of
from trimaran.server.openai.bounds import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from trimaran.server.openai.schema import ChatRequest
from trimaran.server.openai.structured import JsonObjectFormat, NamedSchema, TextFormat
from trimaran.server.openai.tools import Function, OfFunction
from trimaran.server.openai.validation import request_error

Item = dict[str, Any]


class Text(Body):
    inert: ClassVar[fields.Inert] = {"annotations": (None, []), "logprobs": (None, [])}

    type: Literal["input_text", "output_text"]
    text: str


Content = str | Annotated[list[Text], OneFinding(), Field(max_length=MAX_PARTS)]


class MessageItem(Body):
    inert: ClassVar[fields.Inert] = {"phase": (None,)}

    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: str | None = None
    status: str | None = None


class CallItem(Body):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class ResultItem(Body):
    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: str | None = None


class Thought(Body):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Body):
    inert: ClassVar[fields.Inert] = {"encrypted_content": (None,)}

    type: Literal["reasoning"]
    summary: list[Any] | None = None
    content: Annotated[list[Thought], OneFinding(), Field(max_length=MAX_PARTS)] | None = None
    id: str | None = None
    status: str | None = None


def _typed(data: Any) -> Any:
    """A message may leave its type out."""
    return {"type": "message", **data} if isinstance(data, dict) else data


InputItem = Annotated[
    Annotated[MessageItem | CallItem | ResultItem | ReasoningItem, Field(discriminator="type")], BeforeValidator(_typed)
]


class FunctionTool(OfFunction, Function):
    """A tool as this route has it: what a chat's tool has in its ``function`` lies beside the type."""


class NamedFunction(OfFunction):
    name: str


class SchemaFormat(NamedSchema):
    type: Literal["json_schema"]


class TextOptions(Body):
    inert: ClassVar[fields.Inert] = {"verbosity": (None, "medium")}

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None


class Reasoning(Body):
    inert: ClassVar[fields.Inert] = {"summary": (None,), "generate_summary": (None,)}

    effort: str | None = None


class ResponsesRequest(Body):
    """Body of ``POST /v1/responses``."""

    inert: ClassVar[fields.Inert] = fields.RESPONSES

    model: str
    input: str | Annotated[list[InputItem], OneFinding(), Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=128)] | None = None
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    tools: Annotated[list[FunctionTool], OneFinding(), Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    metadata: Annotated[dict[str, str], values_of(str, "a string")] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    def items(self) -> list[Item]:
        """The input as items."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return [item.model_dump(exclude_none=True) for item in self.input]

    def chat(self, items: list[Item]) -> ChatRequest:
        """The chat that goes on from ``items``; raises ``RequestError`` in this route's own words."""
        messages = _messages(items)
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        body: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        body |= {"messages": messages, "max_completion_tokens": self.max_output_tokens}
        body["tools"] = None if self.tools is None else [_chat_tool(tool) for tool in self.tools]
        choice = self.tool_choice
        body["tool_choice"] = (
            {"type": "function", "function": {"name": choice.name}} if isinstance(choice, NamedFunction) else choice
        )
        body["response_format"] = None if self.text is None else _chat_format(self.text.format)
        body["reasoning_effort"] = None if self.reasoning is None else self.reasoning.effort
        body = {name: value for name, value in body.items() if value is not None}
        try:
            return ChatRequest.model_validate(body)
        except ValidationError as error:
            raise in_our_words(request_error(error.errors(include_url=False), body)) from None


_SAME = (  # fields that a chat has too
    "model",
    "temperature",
    "top_p",
    "seed",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "priority",
    "cache_salt",
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
    "user",
)
_CHATS = (  # what a chat calls it, what this route does
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
)


def in_our_words(error: RequestError) -> RequestError:
    """``error`` about a chat with the names that its client has used."""
    text, param = str(error), error.param or ""
    for theirs, ours in _CHATS:
        if param.startswith(theirs):
            text, param = text.replace(theirs, ours), ours + param[len(theirs) :]
            break
    if param.startswith("tools["):
        text, param = text.replace(".function.", "."), param.replace(".function.", ".")
    return type(error)(text, param=param or None, code=error.code)


def _chat_tool(tool: FunctionTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude_none=True, exclude={"type"})}


def _chat_format(wanted: TextFormat | JsonObjectFormat | SchemaFormat | None) -> dict[str, Any] | None:
    if isinstance(wanted, SchemaFormat):
        return {"type": "json_schema", "json_schema": wanted.model_dump(exclude_none=True, exclude={"type"})}
    return None if wanted is None else wanted.model_dump()


def _messages(items: list[Item]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    called = {item["call_id"] for item in items if item["type"] == "function_call"}
    said: set[str] = set()  # what the assistant's last message has already
    for item in items:
        match item["type"]:
            case "function_call_output":
                if item["call_id"] not in called:
                    why = f"input has the output of a call {item['call_id']!r:.80}, which is nowhere before it"
                    raise RequestError(why, param="input")
                content = _text(item["output"])
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
                said.clear()
                continue
            case "message" if item["role"] != "assistant":
                messages.append({"role": item["role"], "content": _text(item["content"])})
                said.clear()
                continue
            case "message":
                new = "content"
            case "reasoning":
                new = "reasoning_content"
            case _:
                new = "tool_calls"
        if not said or (new in said and new != "tool_calls") or (new != "tool_calls" and "tool_calls" in said):
            messages.append({"role": "assistant"})
            said.clear()
        said.add(new)
        message = messages[-1]
        if new == "tool_calls":
            function = {"name": item["name"], "arguments": item["arguments"]}
            message.setdefault(new, []).append({"id": item["call_id"], "type": "function", "function": function})
        elif new == "content":
            message[new] = _text(item["content"])
        else:
            message[new] = "".join(part["text"] for part in item.get("content") or ())
    for message in messages:
        if message["role"] == "assistant" and "content" not in message and "tool_calls" not in message:
            message["content"] = ""  # it only thought
    return [{name: value for name, value in message.items() if name == "content" or value} for message in messages]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
