"""Requests of ``POST /v1/messages`` and ``/v1/messages/count_tokens``, and the chats that they come down to."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trimaran.server.anthropic import fields
from trimaran.server.openai.body import Body, OneFinding, Strings
from trimaran.server.openai.bounds import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from trimaran.server.openai.fields import Inert, refused
from trimaran.server.openai.messages import CalledFunction, Message, ToolCall
from trimaran.server.openai.schema import ChatRequest
from trimaran.server.openai.structured import Aliased, JsonSchemaFormat, NamedSchema
from trimaran.server.openai.tools import Function, FunctionName, Name, Tool, ToolChoice


class TextBlock(Body):
    inert: ClassVar[Inert] = fields.BLOCK

    type: Literal["text"]
    text: str


class ToolResultBlock(Body):
    """What a tool gave; ``is_error`` is told to the model in words."""

    inert: ClassVar[Inert] = fields.BLOCK

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[TextBlock], OneFinding(), Field(max_length=MAX_PARTS)] | None = None
    is_error: bool | None = None


class ToolUseBlock(Body):
    inert: ClassVar[Inert] = fields.CALL

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ThinkingBlock(Body):
    """A thought of an earlier turn; nothing here signs thoughts, so any signature will do."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


Block = Annotated[TextBlock | ToolResultBlock | ToolUseBlock | ThinkingBlock, Field(discriminator="type")]
BELONGS = {"tool_result": "user", "tool_use": "assistant", "thinking": "assistant"}


class Turn(Body):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], OneFinding(), Field(min_length=1, max_length=MAX_PARTS)]

    @model_validator(mode="after")
    def _blocks_of_its_role(self) -> Self:
        for at, block in enumerate(self.content if isinstance(self.content, list) else ()):
            if BELONGS.get(block.type, self.role) != self.role:
                why = f"belongs to messages of the role {BELONGS[block.type]}"
                raise refused("invalid_value", f"content[{at}].type", why)
        return self

    def messages(self) -> Iterator[Message]:
        """The turn as chats have it: results of tools are messages of their own, before what the user says."""
        if isinstance(self.content, str):
            yield _message(self.role, content=self.content)
            return
        for block in self.content:
            if isinstance(block, ToolResultBlock):
                result = _text(block.content or "")
                content = f"Error: {result}" if block.is_error else result
                yield _message("tool", content=content, tool_call_id=block.tool_use_id)
        text = _text([block for block in self.content if isinstance(block, TextBlock)])
        calls = [_call(block) for block in self.content if isinstance(block, ToolUseBlock)]
        thought = "\n".join(block.thinking for block in self.content if isinstance(block, ThinkingBlock))
        if self.role == "assistant":
            yield _message(
                self.role,
                content=text or (None if calls else ""),
                tool_calls=calls or None,
                reasoning_content=thought or None,
            )
        elif text or not any(isinstance(block, ToolResultBlock) for block in self.content):
            yield _message(self.role, content=text)


class CustomTool(Body):
    inert: ClassVar[Inert] = fields.TOOL

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    def tool(self) -> Tool:
        function = Function.model_construct(
            name=self.name, description=self.description, parameters=self.input_schema, strict=self.strict
        )
        return Tool.model_construct(type="function", function=function)


class Choice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.name is not None) != (self.type == "tool"):
            raise refused("invalid_value", "name", "is for the type tool, which needs it")
        return self

    def choice(self) -> str | ToolChoice:
        if self.name is None:
            return {"any": "required"}.get(self.type, self.type)
        function = FunctionName.model_construct(name=self.name)
        return ToolChoice.model_construct(type="function", function=function)


class Thinking(Body):
    """``adaptive`` is what the model does anyway. ``enabled`` has a budget, which nothing here could keep."""

    type: Literal["disabled", "adaptive"]

    @model_validator(mode="before")
    @classmethod
    def _no_budget(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") == "enabled":
            raise refused("unsupported_parameter", "type", "enabled is not supported; send adaptive, or max_tokens")
        return data


class SchemaFormat(Aliased):
    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class Output(Body):
    inert: ClassVar[Inert] = fields.OUTPUT

    format: SchemaFormat | None = None


class Metadata(Body):
    user_id: str | None = None


class CountRequest(Body):
    """Body of ``POST /v1/messages/count_tokens``."""

    inert: ClassVar[Inert] = fields.REQUEST

    model: str
    messages: Annotated[list[Turn], OneFinding(), Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Annotated[list[TextBlock], OneFinding(), Field(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[CustomTool], OneFinding(), Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: Output | None = None

    def chat(self, **options: Any) -> ChatRequest:
        """The same as a chat."""
        system = [] if not self.system else [_message("system", content=_text(self.system))]
        choice = self.tool_choice
        several = choice is None or not choice.disable_parallel_tool_use
        form = None if self.output_config is None else self.output_config.format
        return ChatRequest.model_construct(
            model=self.model,
            messages=[*system, *(message for turn in self.messages for message in turn.messages())],
            tools=None if self.tools is None else [tool.tool() for tool in self.tools],
            tool_choice=None if choice is None else choice.choice(),
            parallel_tool_calls=several,
            reasoning_effort="none" if self.thinking is not None and self.thinking.type == "disabled" else None,
            response_format=None if form is None else _response_format(form),
            **options,
        )


class MessagesRequest(CountRequest):
    """Body of ``POST /v1/messages``."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Strings | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None

    def asked(self) -> ChatRequest:
        """What is asked for, as a chat."""
        return self.chat(
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            user=None if self.metadata is None else self.metadata.user_id,
        )


def _message(role: str, **said: Any) -> Message:
    return Message.model_construct(role=role, **said)


def _call(block: ToolUseBlock) -> ToolCall:
    function = CalledFunction.model_construct(name=block.name, arguments=json.dumps(block.input, ensure_ascii=False))
    return ToolCall.model_construct(id=block.id, type="function", function=function)


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _response_format(form: SchemaFormat) -> JsonSchemaFormat:
    schema = NamedSchema.model_construct(name="answer", json_schema=form.json_schema)
    return JsonSchemaFormat.model_construct(type="json_schema", json_schema=schema)
