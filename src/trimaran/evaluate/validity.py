"""Whether what a model writes where JSON or a call of a tool is asked for parses, and fits what was asked for.

Prompts are plain text with two examples, the same for every model, so that models without a chat template or without
tools in it can be measured too. What is not measured is a vendor's own syntax of calls.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.evaluate.choices import read_lines
from trimaran.evaluate.play import Job, play
from trimaran.evaluate.schema import fits
from trimaran.evaluate.scripts import answer
from trimaran.evaluate.sequences import Sequences
from trimaran.text.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
MOST_TOKENS = 96


@dataclass(frozen=True)
class Prompt:
    """``text`` is what is put to the model, ``schema`` what its answer should fit. ``kind``: "JSON" or "tool call"."""

    kind: str
    text: str
    schemas: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Written:
    """What a model answered: whether it begins with a JSON value, and whether that fits."""

    kind: str
    text: str
    parses: bool
    fits: bool


def read_prompts() -> list[Prompt]:
    """Of each kind 24; a line of their file has ``schema`` and ``text``, or ``tools`` and ``request``."""
    for_json, for_call = ((DATA / name).read_text("utf-8") for name in ("json.txt", "call.txt"))
    found = []
    for _, item in read_lines(DATA / "validity.jsonl"):
        if "tools" in item:
            text = f"{for_call}Tools: {json.dumps(item['tools'])}\nRequest: {item['request']}\nCall:"
            found.append(Prompt("tool call", text, tuple(map(_call_schema, item["tools"]))))
        else:
            text = f"{for_json}Schema: {json.dumps(item['schema'])}\nText: {item['text']}\nJSON:"
            found.append(Prompt("JSON", text, (item["schema"],)))
    return found


def _call_schema(tool: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["name", "arguments"],
        "properties": {"name": {"type": "string", "enum": [tool["name"]]}, "arguments": tool["parameters"]},
    }


def judge(prompt: Prompt, text: str) -> Written:
    """Takes the first line that is not empty, of which what comes after a whole JSON value does not count."""
    line = text.lstrip().partition("\n")[0]
    try:
        value, _ = json.JSONDecoder().raw_decode(line)
    except (ValueError, RecursionError):
        return Written(prompt.kind, text, parses=False, fits=False)
    return Written(prompt.kind, text, parses=True, fits=any(fits(value, schema) for schema in prompt.schemas))


def write(
    sequences: Sequences,
    prompts: Sequence[Prompt],
    tokenizer: Tokenizer,
    stops: Collection[int],
    progress: Callable[[int], None] = lambda _: None,
) -> list[Written]:
    """The model's greedy answers, judged, in order; ``progress`` hears how many there are."""
    ids = [tokenizer.encode_prompt("") + tokenizer.encode(prompt.text) for prompt in prompts]
    jobs = (Job(len(each) + MOST_TOKENS, answer(each, MOST_TOKENS, stops)) for each in ids)
    found: dict[int, Written] = {}
    for number, said in play(sequences, jobs):
        found[number] = judge(prompts[number], tokenizer.decode(said))
        progress(len(found))
    return [found[number] for number in range(len(prompts))]
