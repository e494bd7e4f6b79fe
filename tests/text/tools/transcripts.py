"""What models of every family write, by hand after the families' templates: calls, thoughts, and calls gone wrong."""

from dataclasses import dataclass
from typing import Any

OFFERED: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1},
            "tags": {"type": "array", "items": {"type": "string"}},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
    "put": {
        "type": "object",
        "properties": {"key": {"type": "string"}, "value": {"anyOf": [{"type": "string"}, {"type": "number"}]}},
        "required": ["key", "value"],
        "additionalProperties": False,
    },
}
CITY = 'Zürich "HB"\n\\ <b>'
CITY_JSON = '"Zürich \\"HB\\"\\n\\\\ <b>"'

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Transcript:
    """A text, and what is in it. A ``loose`` one is cut, or not written as the family's template does."""

    text: str
    calls: tuple[Call, ...] = ()
    content: str = ""
    thought: str = ""
    thinking: str = "maybe"
    loose: bool = False


@dataclass(frozen=True, eq=False)
class Family:
    """``control`` are those tokens of the format's that are control tokens in the family's vocabulary."""

    format: str
    reasoning: str | None = None
    control: tuple[str, ...] = ()
    good: tuple[Transcript, ...] = ()
    bad: tuple[str, ...] = ()  # each holds one malformed call


WEATHER: Call = ("get_weather", {"city": CITY, "days": 2})
NOW: Call = ("now", {})
TAGS: Call = ("get_weather", {"city": "</tool", "tags": ["a", "</x>"], "unit": "C"})
PUTS: tuple[Call, ...] = (("put", {"key": "5", "value": 5}), ("put", {"key": "true", "value": "5 apples"}))

HERMES = Family(
    "hermes",
    "qwen3",
    good=(
        Transcript("Hello, <b>you</b>! \n", content="Hello, <b>you</b>! \n"),
        Transcript(
            f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": {CITY_JSON}, "days": 2}}}}\n</tool_call>',
            (WEATHER,),
        ),
        Transcript(
            "<think>\nA tool.\n</think>\n\nI look.\n"
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
            '<tool_call>\n{"arguments": {"city": "</tool", "tags": ["a", "</x>"], "unit": "C"}, "name": "get_weather"}'
            "\n</tool_call>\n",
            (NOW, TAGS),
            "I look.",
            "A tool.",
            loose=True,
        ),
        Transcript(
            '<think>\nA tool.\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            (NOW, NOW),
            "",
            "A tool.",
        ),
        Transcript(
            'I think.\n<tool_call>{"name":"now","arguments":{}}</tool_call>',
            (NOW,),
            "",
            "I think.",
            "begun",
            loose=True,
        ),
        Transcript("No end of a thought", (), "", "No end of a thought", "begun", loose=True),
        Transcript("\n<think></think>Yes", (), "Yes"),
    ),
    bad=(
        '<tool_call>\n{"name": "now", "arguments": {}',
        '<tool_call>\n{"name": "now", "arguments": {}}\n',
        '<tool_call>\n{"name": "now"}\n</tool_call>',
        '<tool_call>\n{"name": "later", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": "{}"}\n</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": {"a": nan}}\n</tool_call>',
        '<tool_call>\n{"name": "now", "name": "now", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": {}, "why": 1}\n</tool_call>',
        "<tool_call>\nnow\n</tool_call>",
        '<tool_call>\n{"name": "now", "arguments": {}} and\n</tool_call>',
    ),
)
LLAMA3 = Family(
    "llama3_json",
    control=("<|python_tag|>",),
    good=(
        Transcript("Hello {world}", content="Hello {world}"),
        Transcript(f'{{"name": "get_weather", "parameters": {{"city": {CITY_JSON}, "days": 2}}}}', (WEATHER,)),
        Transcript('<|python_tag|>{"type": "function", "name": "now", "parameters": {}}', (NOW,), loose=True),
        Transcript('<|python_tag|>{"name": "now", "parameters": {}}', (NOW,)),
        Transcript('\n{"sky": "clear"}', content='\n{"sky": "clear"}', loose=True),
        Transcript('{"name": "Berta", "parameters": {}}', content='{"name": "Berta", "parameters": {}}', loose=True),
    ),
    bad=('<|python_tag|>{"name": "now"}', "<|python_tag|>import this"),
)
QWEN3_CODER = Family(
    "qwen3_coder",
    "qwen3",
    good=(
        Transcript("Hello", content="Hello"),
        Transcript(
            f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{CITY}\n</parameter>\n"
            "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
            (WEATHER,),
        ),
        Transcript(
            "I look.\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n"
            '<parameter=city>\n</tool\n</parameter>\n<parameter=tags>\n["a", "</x>"]\n</parameter>\n'
            "<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>",
            (NOW, TAGS),
            "I look.",
        ),
        Transcript(
            "<tool_call>\n<function=put>\n<parameter=key>\n5\n</parameter>\n<parameter=value>\n5\n</parameter>\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=put>\n<parameter=key>\ntrue\n</parameter>\n"
            "<parameter=value>\n5 apples\n</parameter>\n</function>\n</tool_call>",
            PUTS,
        ),
    ),
    bad=(
        "<tool_call>\n<function=later>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=days>\nmany\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n</tool_call>",
        "<tool_call>\n<function=put>\n<parameter=key>\n1\n</parameter>\n<parameter=key>\n1\n</parameter>\n</function>\n"
        "</tool_call>",
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    ),
)
MISTRAL = Family(
    "mistral",
    "mistral",
    control=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    good=(
        Transcript("Hello", content="Hello"),
        Transcript(f'[TOOL_CALLS]get_weather[ARGS]{{"city": {CITY_JSON}, "days": 2}}', (WEATHER,)),
        Transcript(
            "[THINK]A tool.[/THINK]I look.[TOOL_CALLS]now[ARGS]{}"
            '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city":"</tool","tags":["a","</x>"],"unit":"C"}',
            (NOW, TAGS),
            "I look.",
            "A tool.",
            loose=True,
        ),
        Transcript(
            "[THINK]A tool.[/THINK][TOOL_CALLS]now[ARGS]{}"
            '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "</tool", "tags": ["a", "</x>"], "unit": "C"}',
            (NOW, TAGS),
            "",
            "A tool.",
        ),
    ),
    bad=(
        "[TOOL_CALLS]later[ARGS]{}",
        "[TOOL_CALLS]now{}",
        "[TOOL_CALLS]now[ARGS]",
        '[TOOL_CALLS]now[ARGS]{"a',
        "[TOOL_CALLS]now[ARGS][]",
        "[TOOL_CALLS]now[CALL_ID][ARGS]{}",
        '[TOOL_CALLS][{"name": "now", "arguments": {}}]',
    ),
)
MISTRAL_V7 = Family(
    "mistral_v7",
    control=("[TOOL_CALLS]",),
    good=(
        Transcript(
            f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {{"city": {CITY_JSON}, "days": 2}}}}, '
            '{"name": "now", "arguments": {}, "id": "abcdefghi"}]',
            (WEATHER, NOW),
            loose=True,
        ),
        Transcript('[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]', (NOW, NOW)),
        Transcript("[TOOL_CALLS", content="[TOOL_CALLS"),
    ),
    bad=("[TOOL_CALLS][]", '[TOOL_CALLS][{"name": "now", "arguments": {}} {', "[TOOL_CALLS]now[ARGS]{}"),
)
_V3 = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
DEEPSEEK_V3 = Family(
    "deepseek_v3",
    "deepseek_r1",
    control=_V3,
    good=(
        Transcript(
            "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            f'{{"city": {CITY_JSON}, "days": 2}}\n```<｜tool▁call▁end｜>\n'
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            (WEATHER, NOW),
            "I look.",
        ),
        Transcript(
            "Hm.</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
            "<｜tool▁call▁end｜>",
            (NOW,),
            "",
            "Hm.",
            "begun",
            loose=True,
        ),
    ),
    bad=(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
)
DEEPSEEK_V31 = Family(
    "deepseek_v31",
    "deepseek_v3",
    control=_V3,
    good=(
        Transcript(
            "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
            f'{{"city": {CITY_JSON}, "days": 2}}<｜tool▁call▁end｜>'
            "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            (WEATHER, NOW),
            "I look.",
        ),
    ),
    bad=(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{"a": "<｜tool▁call▁end｜>',
    ),
)
DEEPSEEK_V32 = Family(
    "deepseek_v32",
    "deepseek_v3",
    control=("｜DSML｜",),
    good=(
        Transcript(
            'Hm.</think>I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
            f'<｜DSML｜parameter name="city" string="true">{CITY}</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
            (WEATHER, NOW),
            "I look.",
            "Hm.",
            "begun",
        ),
        Transcript(
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="put">\n'
            '<｜DSML｜parameter name="key" string="true">5</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="value" string="false">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            '<｜DSML｜invoke name="put">\n<｜DSML｜parameter name="key" string="true">true</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="value" string="true">5 apples</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            "</｜DSML｜function_calls>",
            PUTS,
        ),
    ),
    bad=(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="later">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="put">\n<｜DSML｜parameter name="key" string="false">a'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "<｜DSML｜function_calls>\n</｜DSML｜function_calls>",
    ),
)
KIMI_K2 = Family(
    "kimi_k2",
    "kimi_k2",
    control=(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    ),
    good=(
        Transcript(
            "Hm.</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            f'<|tool_call_argument_begin|>{{"city": {CITY_JSON}, "days": 2}}<|tool_call_end|>'
            "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
            (WEATHER, NOW),
            "I look.",
            "Hm.",
            "begun",
        ),
    ),
    bad=(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.later:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
)
GLM45 = Family(
    "glm45",
    "glm45",
    good=(
        Transcript(
            "\n<think>Hm.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
            f"<arg_value>{CITY}</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n"
            "<tool_call>now\n</tool_call>",
            (WEATHER, NOW),
            "I look.",
            "Hm.",
        ),
    ),
    bad=(
        "<tool_call>later\n</tool_call>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n</tool_call>",
        "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Bern</tool_call>",
        "<tool_call>now",
    ),
)
GLM47 = Family(
    "glm47",
    "glm45",
    good=(
        Transcript(
            f"Hm.</think>I look.<tool_call>get_weather<arg_key>city</arg_key><arg_value>{CITY}</arg_value>"
            "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>now</tool_call>",
            (WEATHER, NOW),
            "I look.",
            "Hm.",
            "begun",
        ),
        Transcript("I call.<tool_call>now</tool_call>", (NOW,), "", "I call.", "begun"),
    ),
    bad=("<tool_call></tool_call>", "<tool_call>now<arg_value>1</arg_value></tool_call>"),
)
MINIMAX_M2 = Family(
    "minimax_m2",
    "minimax_m2",
    good=(
        Transcript(
            'Hm.\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name="get_weather">\n'
            f'<parameter name="city">{CITY}</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n'
            '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
            (WEATHER, NOW),
            "I look.",
            "Hm.",
            "begun",
        ),
    ),
    bad=(
        '<minimax:tool_call>\n<invoke name="now">\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="tags">a</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    ),
)
FAMILIES = (
    HERMES,
    LLAMA3,
    QWEN3_CODER,
    MISTRAL,
    MISTRAL_V7,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    KIMI_K2,
    GLM45,
    GLM47,
    MINIMAX_M2,
)
