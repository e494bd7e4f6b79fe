"""What tools cost an answer: writing and compiling its grammar, a mask for each token, and parsing each token.

    python bench/tool_grammars.py smollm2

A text that ends with a call is walked through the grammar of each format, token by token, with more and more functions
on offer. Masks are those of one sequence, on one thread.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, TypeVar

from llguidance import LLMatcher

from trimaran.base.messages import Token
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.engine.constraints.grammars import compile_grammar
from trimaran.engine.constraints.tokenizer import grammar_tokenizer
from trimaran.engine.constraints.tokens import read_token_table
from trimaran.text.choice import Piece
from trimaran.text.tokenizer import Tokenizer, open_tokenizer
from trimaran.text.tools.answer_format import AnswerFormat
from trimaran.text.tools.answer_grammar import Offered, Wanted
from trimaran.text.tools.choice_reader import ChoiceReader
from trimaran.text.tools.families import THINK, TOOL_FORMATS

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city"],
}
SAID = "The weather in Bern is fine today, as it was yesterday. I will look up tomorrow's.\n"
CALLS = {
    "hermes": '<tool_call>\n{"name": "tool_0", "arguments": {"city": "Bern", "days": 2}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=tool_0>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n2\n"
    "</parameter>\n</function>\n</tool_call>",
}
T = TypeVar("T")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument("--tools", type=int, nargs="+", default=[1, 20, 100])
    options = parser.parse_args(arguments)
    path = resolve(options.model).path
    with open_checkpoint(path) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
    vocabulary = grammar_tokenizer(read_token_table(path, tokenizer.vocab_size, tokenizer.eos_ids))
    names = ("write ms", "compile ms", "mask us", "worst us", "parse us")
    print(f"{'format':12} {'tools':>5}", *(f"{name:>10}" for name in names))
    for name, call in CALLS.items():
        form = AnswerFormat(tokenizer, TOOL_FORMATS[name], THINK)
        tokens = tokenizer.encode(SAID + call)
        for count in options.tools:
            offered = tuple(Offered(f"tool_{i}", PARAMETERS, False, "tools") for i in range(count))
            grammar, write = _timed(partial(form.grammar, Wanted(offered, True), "no"))
            assert grammar is not None
            matcher, compiling = _timed(partial(compile_grammar, grammar, vocabulary))
            masks = _masks(matcher.deep_copy(), tokens)
            parse = _parse(form, tokenizer, tokens, {one.name: one.parameters for one in offered})
            numbers = (write * 1e3, compiling * 1e3, median(masks) * 1e6, max(masks) * 1e6, parse * 1e6)
            print(f"{name:12} {count:5}", *(f"{number:10.1f}" for number in numbers))
    return 0


def _timed(make: Callable[[], T]) -> tuple[T, float]:
    begun = time.perf_counter()
    made = make()
    return made, time.perf_counter() - begun


def _masks(matcher: LLMatcher, tokens: list[int]) -> list[float]:
    """Seconds for each token's mask."""
    seconds = []
    for token in tokens:
        seconds.append(_timed(matcher.compute_logit_bias)[1])
        assert matcher.consume_token(token), "the grammar does not let its own format through"
    assert matcher.is_accepting()
    return seconds


def _parse(form: AnswerFormat, tokenizer: Tokenizer, tokens: list[int], offered: dict[str, Any]) -> float:
    """Seconds for each token, its text given."""
    pieces, at = [], 0
    for token in tokens:
        text = tokenizer.decode([token])
        pieces.append(Piece(0, text, (Token(token),), (at,), 1))
        at += len(text)
    rounds = 50
    begun = time.perf_counter()
    for _ in range(rounds):
        reader = ChoiceReader(form.form("no", offered), enforced=True)
        said = [delta for piece in pieces for delta in reader.read(piece)]
    seconds = time.perf_counter() - begun
    assert reader.calls == 1
    assert json.dumps(["Bern"])[1:-1] in "".join(getattr(delta, "text", "") for delta in said)
    return seconds / rounds / len(pieces)


if __name__ == "__main__":
    sys.exit(main())
