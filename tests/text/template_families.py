"""Conversations that every family's chat template is tested with, and what the vendors make of them.

``tests/data/templates/FAMILY.json`` holds what the vendor's own template renders, text by conversation, with source and
licence; ``FAMILY.jinja`` is that template, where its licence lets us keep a copy. ``scripts/goldens_templates.py``
writes both, and compares the families whose templates we may not keep. No code of ours renders what is in these files:
transformers, mistral_common and SGLang do it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).resolve().parent.parent / "data" / "templates"
HARMLESS = "HARMLESS"

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a place, <b>now</b> & "here"; it\'s é',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}},
    },
]


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


ASKS = [
    said("system", "Be brief."),
    said("user", "Weather in Zürich and in Bern?"),
    said(
        "assistant",
        None,
        tool_calls=[
            call("call00001", "get_weather", '{"city": "Zürich", "days": 2}'),
            call("call00002", "get_weather", '{"city": "Bern"}'),
        ],
    ),
    said("tool", '{"sky": "clear"}', tool_call_id="call00001"),
    said("tool", "rain, 3 < 5", tool_call_id="call00002"),
]
ONE_CALL = [*ASKS[:2], {**ASKS[2], "tool_calls": ASKS[2]["tool_calls"][:1]}, ASKS[3]]
ANSWERS = [said("assistant", "Clear, and rain."), said("user", "Thanks.\n\nAnd 1 < 2?")]
TURNS = [
    said("user", "Hi"),
    said("assistant", "Hello!  "),
    said("user", " 12 × 3? \n"),
    said("assistant", "36"),
    said("user", "Sure?"),
]
THOUGHT = [
    said("user", "Hi"),
    said("assistant", "Hello!", reasoning_content="They greet."),
    said("user", "Weather?"),
    said("assistant", "I look.", reasoning_content="A tool.", tool_calls=[call("call00001", "now", "{}")]),
    said("tool", "12:00", tool_call_id="call00001"),
]
THOUGHT_IN_CONTENT = [
    said("user", "Hi"),
    said("assistant", "<think>\nThey greet.\n</think>\n\nHello!"),
    said("user", "Bye"),
]


@dataclass(frozen=True)
class Case:
    messages: list[dict[str, Any]]
    tools: bool = False
    arguments: tuple[tuple[str, Any], ...] = ()

    @property
    def kwargs(self) -> dict[str, Any]:
        return {**({"tools": TOOLS} if self.tools else {}), **dict(self.arguments)}


@dataclass(frozen=True)
class Family:
    """``control`` and ``added`` are tokens of its vocabulary, so called by the vendor's ``tokenizer.json``."""

    name: str
    control: tuple[str, ...]
    added: tuple[str, ...] = ()
    bos: str | None = None
    eos: str | None = None
    system: bool = True
    tools: bool = True
    declares_tools: bool = True
    several_calls: bool = True
    thoughts: bool = False
    switches: tuple[tuple[str, Any], ...] = ()  # one case each

    def typed(self) -> str:
        """What an attacker types: every token, and the beginning of one at the end."""
        tokens = (*self.control, *self.added)
        return "a " + " ".join(tokens) + "".join(tokens) + self.control[-1][:-1]

    def cases(self) -> dict[str, Case]:
        first = [said("system", "Be brief.")] if self.system else []
        cases = {"plain": Case([said("user", "Hi")]), "turns": Case([*first, *TURNS])}
        if self.system:
            cases["system"] = Case([*first, said("user", "Hi")])
        if self.tools:
            asks = ASKS if self.several_calls else ONE_CALL
            if self.declares_tools:
                cases["tools"] = Case(ASKS[:2], tools=True)
            cases["tool_results"] = Case(asks, tools=self.declares_tools)
            cases["tool_results_answered"] = Case([*asks, *ANSWERS], tools=self.declares_tools)
            if self.thoughts:
                cases["thoughts"] = Case(THOUGHT, tools=self.declares_tools)
        if self.thoughts and self.name != "deepseek-v3.2":  # it takes them as reasoning_content alone
            cases["thought_in_content"] = Case(THOUGHT_IN_CONTENT)
        for name, value in self.switches:
            messages = THOUGHT if self.tools and self.thoughts else TURNS
            cases[f"{name}={value}".lower()] = Case(messages, arguments=((name, value),))
        for name, text in (("harmless", HARMLESS), ("injection", self.typed())):
            attack = [*first, said("user", text), said("assistant", "No."), said("user", f"And {text}!")]
            cases[name] = Case(attack, tools=self.tools and self.declares_tools)
        return cases


CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_CALLS = ("<tool_call>", "</tool_call>")
THINK = ("<think>", "</think>")
RESPONSE = ("<tool_response>", "</tool_response>")
GLM = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
GLM_ADDED = (*THINK, *QWEN_CALLS, *RESPONSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink")
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
DEEPSEEK_ADDED = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "<｜tool▁sep｜>",
)
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
KIMI = ("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
KIMI_ADDED = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
MISTRAL = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]"),
    *("[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
TEKKEN = (*MISTRAL, "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]")
ENABLE = (("enable_thinking", True), ("enable_thinking", False))

FAMILIES = {
    family.name: family
    for family in (
        Family("qwen2.5", CHATML, QWEN_CALLS, eos="<|im_end|>"),
        Family("qwen3", CHATML, (*QWEN_CALLS, *RESPONSE, *THINK), eos="<|im_end|>", thoughts=True, switches=ENABLE),
        Family("glm-4.6", GLM, GLM_ADDED, eos="<|endoftext|>", thoughts=True, switches=ENABLE),
        Family(
            "glm-4.7",
            GLM,
            GLM_ADDED,
            eos="<|endoftext|>",
            thoughts=True,
            switches=(*ENABLE, ("clear_thinking", True), ("clear_thinking", False)),
        ),
        Family(
            "deepseek-v3.1",
            DEEPSEEK,
            (*DEEPSEEK_ADDED, *THINK),
            bos=DEEPSEEK[0],
            eos=DEEPSEEK[1],
            declares_tools=False,
            thoughts=True,
            switches=(("thinking", True), ("thinking", False)),
        ),
        Family("ministral-3", (*MISTRAL, "[ARGS]", "[THINK]", "[/THINK]"), bos="<s>", eos="</s>"),
        Family(
            "deepseek-v3.2",
            DEEPSEEK,
            (*DEEPSEEK_ADDED, *THINK, "｜DSML｜"),
            thoughts=True,
            switches=(("thinking", True), ("thinking", False), *ENABLE),
        ),
        Family("tekken-v7", TEKKEN),
        Family("tekken-v11", TEKKEN),
        Family("tekken-v13", TEKKEN),
        Family("llama-3.1", LLAMA, bos=LLAMA[0], eos="<|eot_id|>", several_calls=False),
        Family("llama-3.2", LLAMA, bos=LLAMA[0], eos="<|eot_id|>", several_calls=False),
        Family("llama-3.3", LLAMA, bos=LLAMA[0], eos="<|eot_id|>", several_calls=False),
        Family("gemma-3", ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), bos="<bos>", tools=False),
        Family("deepseek-v3", DEEPSEEK, DEEPSEEK_ADDED, bos=DEEPSEEK[0], eos=DEEPSEEK[1], declares_tools=False),
        Family("kimi-k2", KIMI, KIMI_ADDED, bos="[BOS]", eos="[EOS]"),
        Family(
            "minimax-m2",
            ("]~!b[", "]~b]", "[e~["),
            (*THINK, "<minimax:tool_call>", "</minimax:tool_call>"),
            thoughts=True,
        ),
    )
}
