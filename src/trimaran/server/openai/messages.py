"""Messages of a conversation: what each role says, and the calls of tools and their results among it."""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from trimaran.server.openai import fields
from trimaran.server.openai.body import Body, OneFinding
from trimaran.server.openai.bounds import MAX_CALLS, MAX_PARTS


class TextPart(Body):
    inert = fields.CONTENT_PART

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and (kind := data.get("type", "text")) != "text":
            raise fields.refused("unsupported_parameter", "type", f"{kind!r} is not supported; this model reads text")
        return data


class CalledFunction(Body):
    """``arguments`` are a JSON object as text (``text/chat_messages.py`` looks into it)."""

    name: str
    arguments: str


class ToolCall(Body):
    """A call that the assistant made, as an answer told it; ``index``, which streams have, is its place in the list."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


Role = Literal["system", "developer", "user", "assistant", "tool"]
ASSISTANTS = ("tool_calls", "reasoning_content")  # fields that only the assistant's messages have
_NOT_SHOWN: dict[str, Any] = {"tool_calls": {"__all__": {"index"}}}


class Message(Body):
    inert = fields.MESSAGE

    role: Role
    content: str | Annotated[list[TextPart], OneFinding(), Field(max_length=MAX_PARTS)] | None = None
    tool_calls: Annotated[list[ToolCall], OneFinding(), Field(max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _known_role(cls, data: Any) -> Any:
        roles = get_args(Role)  # said before anything about the fields that other roles have
        if isinstance(data, dict) and (role := data.get("role", "user")) not in roles:
            raise fields.refused("invalid_value", "role", f"must be one of {', '.join(roles)}, not {role!r:.50}")
        return data

    @model_validator(mode="after")
    def _as_its_role_says(self) -> Self:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise fields.refused("missing_required_parameter", "content", "is required")
        for name in ASSISTANTS:
            if self.role != "assistant" and getattr(self, name):
                raise fields.refused("invalid_value", name, "belongs to messages of the assistant")
        if self.role == "tool" and self.tool_call_id is None:
            raise fields.refused("missing_required_parameter", "tool_call_id", "is required")
        if self.role != "tool" and self.tool_call_id is not None:
            raise fields.refused("invalid_value", "tool_call_id", "belongs to messages of the role tool")
        for at, call in enumerate(self.tool_calls or ()):
            if call.index not in (None, at):
                raise fields.refused("invalid_value", f"tool_calls[{at}].index", "is not its place in the list")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it: fields that say nothing are not there, but for ``content``."""
        return {"content": None, **self.model_dump(exclude_none=True, exclude=_NOT_SHOWN)}
