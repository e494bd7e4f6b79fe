import re
from pathlib import Path

import pytest

from trimaran.text.deepseek_v32 import DeepSeekV32
from trimaran.text.mistral import Mistral
from trimaran.text.tools.call_ids import call_ids
from trimaran.text.tools.families import KIMI_K2, MISTRAL, QWEN3_CODER, reasoning_format_of, tool_format_of

TEMPLATES = Path(__file__).resolve().parents[2] / "data" / "templates"


def source(name):
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "tools", "reasoning"),
    [
        ("qwen2.5", "hermes", None),
        ("qwen3", "hermes", "qwen3"),
        ("glm-4.6", "glm45", "qwen3"),
        ("glm-4.7", "glm47", "qwen3"),
        ("deepseek-v3.1", "deepseek_v31", "qwen3"),
        ("ministral-3", "mistral", "mistral"),
    ],
)
def test_a_template_tells_its_formats(name, tools, reasoning):
    assert tool_format_of(source(name)) == tools
    assert reasoning_format_of(source(name)) == reasoning


@pytest.mark.parametrize(
    ("renderer", "tools"),
    [(DeepSeekV32(), "deepseek_v32"), (Mistral(7), "mistral_v7"), (Mistral(11), "mistral"), (Mistral(13), "mistral")],
)
def test_so_does_code(renderer, tools):
    assert tool_format_of(renderer.source) == tools


@pytest.mark.parametrize(
    ("template", "tools"),
    [
        ("<|im_start|>{{ message.role }}", None),
        ("<tool_call>\n<function=example>\n<parameter=a>", "qwen3_coder"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi_k2"),
        ("<minimax:tool_call>", "minimax_m2"),
        ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n```json\\n", "deepseek_v3"),
        ('<|start_header_id|> {"name": function name, "parameters": dictionary}', "llama3_json"),
    ],
)
def test_signs_of_other_families(template, tools):
    assert tool_format_of(template) == tools


def test_ids_have_the_form_of_the_family():
    kimi = call_ids(KIMI_K2, 3)
    assert [kimi("f"), kimi("{n}")] == ["functions.f:3", "functions.{n}:4"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", call_ids(MISTRAL, 0)("f"))
    usual = call_ids(QWEN3_CODER, 0)
    assert re.fullmatch("call_[0-9a-f]{24}", usual("f"))
    assert usual("f") != usual("f")
