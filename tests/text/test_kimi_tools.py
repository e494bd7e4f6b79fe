import json

import pytest

from trimaran.text.kimi_tools import typescript

from .kimi_schemas import CASES
from .template_families import TEMPLATES

GOLDEN = json.loads((TEMPLATES / "kimi_tools.json").read_text("utf-8"))["rendered"]


@pytest.mark.parametrize("name", CASES)
def test_declarations_are_the_vendors(name):
    assert typescript(CASES[name]) == GOLDEN[name]


@pytest.mark.parametrize("tools", [[{}], [3], [{"type": "function", "function": 3}]])
def test_what_is_no_tool_has_no_declaration(tools):
    assert typescript(tools) is None
