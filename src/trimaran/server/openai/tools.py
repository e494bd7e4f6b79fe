"""``tools`` and ``tool_choice``: which functions an answer may, must or must not call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trimaran.base.errors import RequestError
from trimaran.base.grammar import Grammar
from trimaran.server.openai import fields
from trimaran.server.openai.body import Body, OneFinding
from trimaran.server.openai.bounds import MAX_TOOLS, require_small
from trimaran.text.tools.answer_grammar import Offered, Wanted

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]  # as the OpenAI API has it

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}  # the parameters of a function that names none


class Function(Body):
    """``parameters`` is the JSON Schema of an object; with ``strict`` all of it is enforced or refused."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class OfFunction(Body):
    """What has a type because other APIs have more kinds of tools: all but functions are refused by that type."""

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _only_functions(cls, data: Any) -> Any:
        return of_type(data, "function")


class Tool(OfFunction):
    function: Function

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates show it to the model."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": {**function, "parameters": self.parameters}}

    @property
    def parameters(self) -> dict[str, Any]:
        return self.function.parameters or NOTHING


class FunctionName(Body):
    name: str


class NamedTool(OfFunction):
    function: FunctionName


class Allowed(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], OneFinding(), Field(min_length=1, max_length=MAX_TOOLS)]


class ToolChoice(Body):
    """The one function that must be called, or some of those offered."""

    type: Literal["function", "allowed_tools"]
    function: FunctionName | None = None
    allowed_tools: Allowed | None = None

    @model_validator(mode="before")
    @classmethod
    def _known_types(cls, data: Any) -> Any:
        return of_type(data, "function", "allowed_tools")

    @model_validator(mode="after")
    def _as_its_type_says(self) -> Self:
        wanted, other = ("function", "allowed_tools") if self.type == "function" else ("allowed_tools", "function")
        if getattr(self, wanted) is None:
            raise fields.refused("missing_required_parameter", wanted, "is required")
        if getattr(self, other) is not None:
            raise fields.refused("invalid_value", other, f"does not belong to the type {self.type}")
        return self


@dataclass(frozen=True)
class Calling:
    """``tools`` is what the model is shown, ``names`` what it may call of that; ``must``: it has to."""

    tools: tuple[Tool, ...] = ()
    names: frozenset[str] = frozenset()
    must: bool = False
    several: bool = True

    @property
    def offered(self) -> dict[str, dict[str, Any]]:
        """The schemas of what may be called, by name."""
        return {tool.function.name: tool.parameters for tool in self.tools if tool.function.name in self.names}

    def wanted(self, answer: Grammar | None) -> Wanted:
        """What an answer may be, if one that calls nothing must be as ``answer`` says.

        Schemas of functions that may be called or not are enforced as far as they can be, unless they are ``strict``.
        """
        offered = tuple(
            Offered(
                tool.function.name,
                tool.parameters,
                self.must or bool(tool.function.strict),
                f"tools[{at}].function.parameters",
            )
            for at, tool in enumerate(self.tools)
            if tool.function.name in self.names
        )
        return Wanted(offered, bool(self.tools), self.must, self.several, answer)


def calling(tools: Sequence[Tool], choice: str | ToolChoice | None, several: bool) -> Calling:
    """What ``tools``, ``tool_choice`` and ``parallel_tool_calls`` say together; raises ``RequestError``."""
    names: dict[str, int] = {}
    for at, tool in enumerate(tools):
        name = tool.function.name
        if name in names:
            where = f"tools[{at}].function.name"
            raise RequestError(f"{where} is {name!r}, as is tools[{names[name]}]", param=where, code="invalid_value")
        names[name] = at
        require_small(tool.parameters, f"tools[{at}].function.parameters")
        _require_object(tool.parameters, f"tools[{at}].function.parameters")
    if not (several or tools):
        why = "parallel_tool_calls is allowed only where there are tools"
        raise RequestError(why, param="parallel_tool_calls", code="invalid_value")
    must, wanted, where = choice == "required", list(names), "tool_choice"
    if isinstance(choice, ToolChoice) and choice.function is not None:
        must, wanted, where = True, [choice.function.name], "tool_choice.function.name"
        several = False  # exactly one call, as in the OpenAI API: clients take a second one for an error
    elif isinstance(choice, ToolChoice) and choice.allowed_tools is not None:
        allowed = choice.allowed_tools
        must, wanted = allowed.mode == "required", [tool.function.name for tool in allowed.tools]
        where = "tool_choice.allowed_tools.tools"
    for name in wanted:
        if name not in names:
            raise RequestError(f"{where}: no tool is called {name!r:.80}", param=where, code="invalid_value")
    if must and not wanted:
        raise RequestError("tool_choice 'required' needs tools", param="tool_choice", code="invalid_value")
    return Calling(tuple(tools), frozenset(() if choice == "none" else wanted), must, several)


def of_type(data: Any, *kinds: str) -> Any:
    """``data``, unless its type is not one of ``kinds``: said before anything about the fields of other types."""
    if isinstance(data, dict) and (kind := data.get("type", kinds[0])) not in kinds:
        why = f"{kind!r:.50} is not supported; it must be {' or '.join(kinds)}"
        raise fields.refused("unsupported_parameter", "type", why)
    return data


def _require_object(parameters: dict[str, Any], where: str) -> None:
    """Raises ``RequestError`` unless ``parameters`` looks like the schema of an object: arguments are always one."""
    kind = parameters.get("type", "object")
    if kind != "object":
        raise RequestError(
            f"{where}.type must be 'object', not {kind!r:.50}", param=f"{where}.type", code="invalid_value"
        )
    properties = parameters.get("properties", {})
    if not isinstance(properties, dict):
        raise RequestError(
            f"{where}.properties must be a JSON object", param=f"{where}.properties", code="invalid_value"
        )
