import pytest

from trimaran.base.errors import ContextLengthError, EngineDiedError, QueueFullError, RequestError, TrimaranError
from trimaran.base.failures import error_of
from trimaran.base.messages import Failed


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("RequestError", RequestError),
        ("ContextLengthError", ContextLengthError),
        ("EngineDiedError", EngineDiedError),
        ("NotOurs", TrimaranError),
    ],
)
def test_the_exception_is_the_one_that_was_raised(kind, expected):
    error = error_of(Failed("1", kind, "what went wrong"))
    assert type(error) is expected
    assert str(error) == "what went wrong"


def test_fields_travel_along():
    error = error_of(Failed("1", "ContextLengthError", "too long", param="prompt", code="context_length_exceeded"))
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert error_of(Failed("1", "QueueFullError", "full", retry_after=2.5)).retry_after == 2.5
    assert isinstance(error_of(Failed("1", "QueueFullError", "full")), QueueFullError)
