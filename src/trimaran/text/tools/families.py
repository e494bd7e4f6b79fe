"""The formats of the families that we know, under the names that vLLM has for their parsers.

Sources: the families' chat templates (``tests/data/templates`` holds those that may be copied), the encoders that
vendors ship beside them, and what those models write.
"""

from collections.abc import Callable, Mapping

from trimaran.text.tools.formats import NamedCall, ObjectCall, ReasoningFormat, TaggedCall, ToolFormat

HERMES = ToolFormat(begin="<tool_call>\n", end="\n</tool_call>", call=ObjectCall())
LLAMA3 = ToolFormat(
    begin="<|python_tag|>", end="", call=ObjectCall(arguments="parameters", also=("type",)), bare=True, most=1
)
QWEN3_CODER = ToolFormat(
    begin="<tool_call>\n",
    end="\n</tool_call>",
    call=TaggedCall(
        before="<function=",
        between=">\n",
        argument="<parameter=",
        keys=((">", None),),
        value_end="</parameter>\n",
        after="</function>",
        padding="\n",
    ),
)
MISTRAL_V7 = ToolFormat(
    begin="[TOOL_CALLS]", opening="[", end="]", call=ObjectCall(also=("id",)), several=True, separator=", ", ids="short"
)
MISTRAL = ToolFormat(
    begin="[TOOL_CALLS]", end="", call=NamedCall(before="", between="[ARGS]", id_mark="[CALL_ID]"), ids="short"
)
DEEPSEEK_V3 = ToolFormat(
    begin="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    call=NamedCall(
        before="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        between="\n```json\n",
        after="\n```<｜tool▁call▁end｜>",
    ),
    several=True,
    separator="\n",
)
DEEPSEEK_V31 = ToolFormat(
    begin="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    call=NamedCall(before="<｜tool▁call▁begin｜>", between="<｜tool▁sep｜>", after="<｜tool▁call▁end｜>"),
    several=True,
)
DEEPSEEK_V32 = ToolFormat(
    begin="<｜DSML｜function_calls>\n",
    end="\n</｜DSML｜function_calls>",
    call=TaggedCall(
        before='<｜DSML｜invoke name="',
        between='">\n',
        argument='<｜DSML｜parameter name="',
        keys=(('" string="true">', "string"), ('" string="false">', "json")),
        value_end="</｜DSML｜parameter>\n",
        after="</｜DSML｜invoke>",
    ),
    several=True,
    separator="\n",
)
KIMI_K2 = ToolFormat(
    begin="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
    call=NamedCall(
        before="<|tool_call_begin|>",
        between="<|tool_call_argument_begin|>",
        after="<|tool_call_end|>",
        name="functions.{f}:{n}",
    ),
    several=True,
    ids="counted",
)
GLM45 = ToolFormat(
    begin="<tool_call>",
    end="</tool_call>",
    call=TaggedCall(
        before="",
        between="\n",
        argument="<arg_key>",
        keys=(("</arg_key>\n<arg_value>", None),),
        value_end="</arg_value>\n",
    ),
)
GLM47 = ToolFormat(
    begin="<tool_call>",
    end="</tool_call>",
    call=TaggedCall(
        before="",
        between="",
        argument="<arg_key>",
        keys=(("</arg_key><arg_value>", None),),
        value_end="</arg_value>",
    ),
)
MINIMAX_M2 = ToolFormat(
    begin="<minimax:tool_call>\n",
    end="\n</minimax:tool_call>",
    call=TaggedCall(
        before='<invoke name="',
        between='">\n',
        argument='<parameter name="',
        keys=(('">', None),),
        value_end="</parameter>\n",
        after="</invoke>",
    ),
    several=True,
    separator="\n",
)

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": HERMES,
    "llama3_json": LLAMA3,
    "qwen3_coder": QWEN3_CODER,
    "mistral": MISTRAL,
    "mistral_v7": MISTRAL_V7,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseek_v32": DEEPSEEK_V32,
    "kimi_k2": KIMI_K2,
    "glm45": GLM45,
    "glm47": GLM47,
    "minimax_m2": MINIMAX_M2,
}

THINK = ReasoningFormat("<think>", "</think>")
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": THINK,
    "deepseek_v3": THINK,
    "qwen3": THINK,
    "kimi_k2": THINK,
    "glm45": THINK,
    "minimax_m2": THINK,
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
}


def tool_format_of(template: str) -> str | None:
    """The name of the format that a chat template writes calls of tools in, told from the template's source."""
    return next((name for name, writes in _SIGNS if writes(template)), None)


def reasoning_format_of(template: str) -> str | None:
    """The name of the format of thoughts that a chat template knows, told from its source."""
    return next((name for name, sign in (("qwen3", "</think>"), ("mistral", "[/THINK]")) if sign in template), None)


def _has(*signs: str) -> Callable[[str], bool]:
    return lambda template: all(sign in template for sign in signs)


_SIGNS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("deepseek_v32", _has("<｜DSML｜function_calls>")),
    ("deepseek_v3", _has("<｜tool▁sep｜>", "```json")),
    ("deepseek_v31", _has("<｜tool▁sep｜>")),
    ("kimi_k2", _has("<|tool_call_begin|>")),
    ("minimax_m2", _has("<minimax:tool_call>")),
    ("glm45", _has("<arg_key>", "</arg_key>\n<arg_value>")),
    ("glm47", _has("<arg_key>")),
    ("qwen3_coder", _has("<tool_call>", "<function=")),
    ("hermes", _has("<tool_call>")),
    ("mistral", _has("[TOOL_CALLS]", "[ARGS]")),
    ("mistral_v7", _has("[TOOL_CALLS]")),
    ("llama3_json", _has("<|start_header_id|>", '"parameters"')),
)
