"""What an answer must look like: ``response_format`` of the OpenAI API, and vLLM's fields for the same.

All of them come down to one ``Grammar``. The engine compiles it, and refuses what it cannot enforce before there is a
first token.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import ConfigDict, Field, ValidationError, model_validator

from trimaran.base.errors import RequestError
from trimaran.base.grammar import Grammar, GrammarKind
from trimaran.server.openai import fields
from trimaran.server.openai.body import Body, OneFinding
from trimaran.server.openai.validation import request_error

ANY_OBJECT = '{"type":"object"}'
MAX_CHOICES = 4096
MAX_STRUCTURES = 256

Schema = dict[str, Any] | bool
Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]], OneFinding(), Field(min_length=1, max_length=MAX_CHOICES)
]


class Aliased(Body):
    """A body with a field whose name pydantic has taken for itself."""

    model_config = ConfigDict(serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        return fields.without_inert(data, cls.inert, known) if isinstance(data, dict) else data


class NamedSchema(Aliased):
    """``strict`` or not, all of the schema is enforced."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    json_schema: Annotated[Schema, Field(alias="schema")]
    strict: bool | None = None


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class TagStructure(Aliased):
    begin: Annotated[str, Field(min_length=1)]
    json_schema: Annotated[Schema, Field(alias="schema")]
    end: str


class StructuralTagFormat(Body):
    """Text with structures in it, as vLLM's ``structural_tag``: what follows a trigger is one that begins so."""

    inert: ClassVar[fields.Inert] = {"format": (None,)}

    type: Literal["structural_tag"]
    structures: Annotated[list[TagStructure], OneFinding(), Field(min_length=1, max_length=MAX_STRUCTURES)]
    triggers: Annotated[
        list[Annotated[str, Field(min_length=1)]], OneFinding(), Field(min_length=1, max_length=MAX_STRUCTURES)
    ]


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat, Field(discriminator="type")
]


class StructuredOutputs(Aliased):
    """vLLM's ``structured_outputs``: one of these, and ``whitespace_pattern`` beside ``json`` or ``json_object``."""

    inert: ClassVar[fields.Inert] = fields.STRUCTURED_OUTPUTS

    as_json: Annotated[Schema | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    whitespace_pattern: str | None = None


class Constraint(Body):
    """A constraint that an installed package brings, and what it is told."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    argument: Any = None


class Structured(Body):
    """The fields that say what an answer must look like; one of them at most may."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    structural_tag: str | None = None
    constraint: Constraint | None = None

    def grammar(self) -> Grammar | None:
        """What the answer must look like, None where nothing says so; raises ``RequestError``."""
        outputs, prefix = self.structured_outputs or StructuredOutputs(), "structured_outputs."
        found = [
            *_of_format(self.response_format),
            *_json(outputs.as_json, prefix + "json", outputs.whitespace_pattern),
            *_json(outputs.json_object, prefix + "json_object", outputs.whitespace_pattern, wanted=True),
            *_text("regex", outputs.regex, prefix + "regex"),
            *_listed(outputs.choice, prefix + "choice"),
            *_text("ebnf", outputs.grammar, prefix + "grammar"),
            *_tags(outputs.structural_tag, prefix + "structural_tag"),
            *_json(self.guided_json, "guided_json", self.guided_whitespace_pattern),
            *_json(self.guided_json_object, "guided_json_object", self.guided_whitespace_pattern, wanted=True),
            *_text("regex", self.guided_regex, "guided_regex"),
            *_listed(self.guided_choice, "guided_choice"),
            *_text("ebnf", self.guided_grammar, "guided_grammar"),
            *_tags(self.structural_tag, "structural_tag"),
        ]
        if self.constraint is not None:
            found.append(Grammar("constraint", self.constraint.model_dump_json(), "constraint"))
        if len(found) > 1:
            first, second = found[0].field, found[1].field
            raise RequestError(
                f"{first} and {second} both say what the answer must look like; send one of them", param=second
            )
        for field, pattern in (
            (prefix + "whitespace_pattern", outputs.whitespace_pattern),
            ("guided_whitespace_pattern", self.guided_whitespace_pattern),
        ):
            if pattern is not None and (not found or found[0].whitespace != pattern):
                raise RequestError(f"{field} is for JSON, which the request does not ask for beside it", param=field)
        return found[0] if found else None


def _of_format(wanted: Any) -> list[Grammar]:
    field = "response_format"
    match wanted:
        case JsonObjectFormat():
            return [Grammar("json_schema", ANY_OBJECT, field)]
        case JsonSchemaFormat():
            return _json(wanted.json_schema.json_schema, f"{field}.json_schema.schema", None)
        case StructuralTagFormat():
            return [_tag_grammar(wanted, field)]
    return []


def _json(schema: Schema | str | None, field: str, whitespace: str | None, *, wanted: bool = False) -> list[Grammar]:
    """``wanted``: the field says whether there is to be an object, of any kind."""
    if schema is None or (wanted and not schema):
        return []
    text = ANY_OBJECT if wanted else schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return [Grammar("json_schema", text, field, whitespace or "")]


def _text(kind: GrammarKind, text: str | None, field: str) -> list[Grammar]:
    return [] if text is None else [Grammar(kind, text, field)]


def _listed(choices: list[str] | None, field: str) -> list[Grammar]:
    return [] if choices is None else [Grammar("choice", msgspec.json.encode(choices).decode(), field)]


def _tags(text: str | None, field: str) -> list[Grammar]:
    """A structural tag that comes as JSON in a string."""
    if text is None:
        return []
    value: Any = None
    try:
        value = msgspec.json.decode(text)
        return [_tag_grammar(StructuralTagFormat.model_validate_json(text), field)]
    except ValidationError as error:
        why = str(request_error(error.errors(), value)) if isinstance(value, dict) else "it must be a JSON object"
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        why = str(error)
    raise RequestError(f"{field} is no structural tag: {why}", param=field)


def _tag_grammar(wanted: StructuralTagFormat, field: str) -> Grammar:
    return Grammar("structural_tag", wanted.model_dump_json(), field)
