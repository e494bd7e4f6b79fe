from trimaran.text.tools.annotations import without_annotations


def test_what_a_schema_says_to_people_goes_and_nothing_else():
    schema = {
        "title": "T",
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "d", "default": {"type": "x"}},
            "default": {"enum": [{"title": "kept"}], "examples": []},
            "list": {"anyOf": [{"title": "a", "type": "null"}, {"items": {"$comment": "c", "const": {"title": 1}}}]},
        },
        "$defs": {"description": {"description": "d", "type": "null"}},
        "required": ["title"],
        "additionalProperties": False,
    }
    assert without_annotations(schema) == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "default": {"enum": [{"title": "kept"}]},
            "list": {"anyOf": [{"type": "null"}, {"items": {"const": {"title": 1}}}]},
        },
        "$defs": {"description": {"type": "null"}},
        "required": ["title"],
        "additionalProperties": False,
    }
