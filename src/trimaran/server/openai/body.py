"""What all request bodies have in common: strict types, known fields only, and errors that say one thing."""

from types import UnionType
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, model_validator

from trimaran.server.openai import fields


class OneFinding(FailFast):
    """One finding about a long list is enough: a million take seconds. Hashable, as members of a union must be."""

    __hash__ = object.__hash__


def values_of(kind: type | UnionType, what: str) -> BeforeValidator:
    """What ``OneFinding`` does for lists: the first value of an object that is not of ``kind`` ends it."""

    def check(data: Any) -> Any:
        if isinstance(data, dict):
            for key, value in data.items():
                if isinstance(value, bool) or not isinstance(value, kind):
                    raise fields.refused("invalid_type", key, f"is not {what}")
        return data

    return BeforeValidator(check)


Ids = Annotated[list[int], OneFinding()]
Strings = Annotated[list[str], OneFinding()]


class Body(BaseModel):
    """A JSON object with known fields only; ``inert`` holds those accepted at the value that changes nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    inert: ClassVar[fields.Inert] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        return fields.without_inert(data, cls.inert, cls.model_fields) if isinstance(data, dict) else data
