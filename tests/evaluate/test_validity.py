import json
from pathlib import Path

import pytest

from trimaran.checkpoint import open_checkpoint
from trimaran.evaluate.schema import fits
from trimaran.evaluate.validity import Prompt, judge, read_prompts, write
from trimaran.text.tokenizer import open_tokenizer

from .tiny import opened, write_tiny

CITY = Prompt("JSON", "", ({"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}},))


@pytest.mark.parametrize(
    ("text", "parses", "fitting"),
    [
        (' {"city": "Lyon"}', True, True),
        ('\n{"city": "Lyon"} and more', True, True),
        ('{"city": 3}', True, False),
        ("7", True, False),
        ('{"city": "Lyon"', False, False),
        ("{'city': 'Lyon'}", False, False),
        ("", False, False),
        ("[" * 100_000, False, False),
    ],
)
def test_the_first_line_is_judged(text: str, parses: bool, fitting: bool) -> None:
    written = judge(CITY, text)
    assert (written.parses, written.fits) == (parses, fitting)


def test_every_prompt_can_be_answered() -> None:
    prompts = read_prompts()
    assert [each.kind for each in prompts].count("JSON") == [each.kind for each in prompts].count("tool call") == 24
    call = next(each for each in prompts if "get_stock_price" in each.text)
    assert judge(call, '{"name": "get_stock_price", "arguments": {"symbol": "ACME"}}').fits
    assert not judge(call, '{"name": "get_stock", "arguments": {"symbol": "ACME"}}').fits
    assert not judge(call, '{"name": "get_stock_price", "arguments": {}}').fits
    assert all(not fits({}, schema) for each in prompts for schema in each.schemas)


def test_the_examples_in_the_prompts_fit_their_own_schemas() -> None:
    text = next(each for each in read_prompts() if each.kind == "tool call").text
    for example in text.split("\n\n")[1:-1]:
        tools, _, call = (line.partition(": ")[2] for line in example.splitlines())
        value = json.loads(call)
        tool = next(each for each in json.loads(tools) if each["name"] == value["name"])
        assert fits(value["arguments"], tool["parameters"])


def test_answers_come_in_order_and_do_not_depend_on_their_neighbours(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny")
    with open_checkpoint(model) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
    prompts = [Prompt("JSON", text, CITY.schemas) for text in ("abc", "the quick brown fox", "x", "{")]
    sequences = opened(model, longest=160)
    together = [each.text for each in write(sequences, prompts, tokenizer, {5})]
    assert together == [write(sequences, [prompt], tokenizer, {5})[0].text for prompt in prompts]
    assert len(set(together)) > 1
    sequences.close()
