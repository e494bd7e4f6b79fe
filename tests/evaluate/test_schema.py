import pytest

from trimaran.evaluate.schema import fits

PERSON = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


@pytest.mark.parametrize(
    "value", [{"name": "a"}, {"name": "a", "age": 3}, {"name": "", "tags": []}, {"name": "a", "tags": ["b"]}]
)
def test_what_fits(value: object) -> None:
    assert fits(value, PERSON)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        "a",
        None,
        {"name": 1},
        {"name": "a", "age": "3"},
        {"name": "a", "age": True},
        {"name": "a", "age": 3.5},
        {"name": "a", "tags": [1]},
        {"name": "a", "more": 1},
    ],
)
def test_what_does_not(value: object) -> None:
    assert not fits(value, PERSON)


def test_enumerations_and_numbers() -> None:
    assert fits("b", {"type": "string", "enum": ["a", "b"]})
    assert not fits("c", {"type": "string", "enum": ["a", "b"]})
    assert fits(2, {"type": "number"})
    assert fits(True, {"type": "boolean"})
    assert not fits(1, {"type": "boolean"})
