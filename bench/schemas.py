"""Are structured answers valid, whatever the schema, and what does holding them to it cost?

    python bench/schemas.py smollm2 --from FOLDER --from check_jsonschema --count 500 --check

Takes schemas from folders (such as the ``tests`` of json-schema-test-suite) and installed packages, and draws others;
asks the model for an answer to each, at temperature 1; and validates each finished one with ``jsonschema``, formats
included. With ``--check`` the exit status is 1 when a finished answer is not valid, or a schema was refused after its
answer had begun. Masks are filled while the executor runs, so their share of a step's time is not all added to it.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from trimaran.base.errors import RequestError
from trimaran.base.grammar import Grammar
from trimaran.base.messages import Failed, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.bench.schema_cases import Schema, drawn_schemas, schemas_in
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.text.template import ChatTemplate, open_template
from trimaran.text.tokenizer import Tokenizer, open_tokenizer

SHOWN = 600  # characters of a schema that the prompt shows


@dataclass
class Tally:
    """What became of the schemas, and what each step took."""

    finished: int = 0
    cut: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # failures after the answer had begun
    invalid: list[str] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)  # seconds of each step, per row that was masked
    steps: list[tuple[float, float]] = field(default_factory=list)  # seconds for masks, and in all


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument(
        "--from", dest="sources", action="append", default=[], metavar="SOURCE", help="folder or package"
    )
    parser.add_argument("--count", type=int, default=500, help="schemas in all; what sources lack is drawn")
    parser.add_argument("--drawn", type=float, default=0.4, help="share of schemas that are drawn")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    sys.set_int_max_str_digits(0)  # an integer may be as long as an answer
    path = resolve(options.model).path
    cases = choose(options.sources, options.count, options.drawn, options.seed)
    with open_checkpoint(Path(path)) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
        template = open_template(checkpoint, tokenizer, None)
    engine = load_engine(
        EngineConfig(model=str(path), max_num_seqs=options.concurrency, threads=options.threads, seed=options.seed)
    )
    begun = time.perf_counter()
    tally = run(engine, tokenizer, template, cases, options.concurrency, options.max_tokens)
    report(tally, len(cases), engine, time.perf_counter() - begun)
    engine.close()
    return int(options.check and bool(tally.invalid or tally.broken))


def choose(sources: list[str], count: int, drawn: float, seed: int) -> list[tuple[str, Schema]]:
    """``count`` schemas, a share of ``drawn`` of them at random and the others from ``sources``."""
    found = [case for source in sources for case in schemas_in(source)]
    random.Random(seed).shuffle(found)
    found = found[: round(count * (1 - drawn))]
    return [*found, *drawn_schemas(count - len(found), seed)]


def run(
    engine: Engine,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    cases: list[tuple[str, Schema]],
    concurrency: int,
    max_tokens: int,
) -> Tally:
    """Asks for an answer to each, ``concurrency`` at a time."""
    tally = Tally()
    waiting = list(reversed(list(enumerate(cases))))
    texts: dict[str, list[int]] = {}
    while waiting or texts:
        while waiting and len(texts) < concurrency:
            number, (_, schema) = waiting.pop()
            try:
                engine.submit(Submit(str(number), prompt(template, schema), sampling(schema, number, max_tokens)))
            except RequestError as error:
                tally.refused[reason(str(error))] += 1
                continue
            texts[str(number)] = []
        began, masked, rows = time.perf_counter(), engine.constraints.counters().mask_seconds, engine.stats().running
        messages = engine.step()
        seconds = engine.constraints.counters().mask_seconds - masked
        if seconds and rows:
            tally.masks.append(seconds / rows)
            tally.steps.append((seconds, time.perf_counter() - began))
        for message in messages:
            if isinstance(message, Tokens | Failed):
                take(message, texts, tally, tokenizer, cases)
    return tally


def prompt(template: ChatTemplate, schema: Schema) -> list[int]:
    text = f"Answer with JSON that fits this schema, and nothing else:\n{json.dumps(schema)[:SHOWN]}"
    return template.render([{"role": "user", "content": text}], add_generation_prompt=True)


def sampling(schema: Schema, number: int, max_tokens: int) -> SamplingParams:
    grammar = Grammar("json_schema", json.dumps(schema), "schema")
    return SamplingParams(grammar=grammar, temperature=1.0, max_tokens=max_tokens, seed=number)


def take(
    message: Tokens | Failed,
    texts: dict[str, list[int]],
    tally: Tally,
    tokenizer: Tokenizer,
    cases: list[tuple[str, Schema]],
) -> None:
    """Notes what a message says of its request."""
    if isinstance(message, Failed):
        if texts.pop(message.id):
            tally.broken.append(f"{cases[int(message.id)][0]}: {message.message}")
        else:
            tally.refused[reason(message.message)] += 1
        return
    texts[message.id] += [token.id for token in message.tokens]
    if message.finish is None:
        return
    ids = texts.pop(message.id)
    if message.finish == "length":
        tally.cut += 1
        return
    tally.finished += 1
    name, schema = cases[int(message.id)]
    if (trouble := problem(tokenizer.decode(ids), schema)) is not None:
        tally.invalid.append(f"{name}: {trouble}")


def problem(text: str, schema: Schema) -> str | None:
    """Why ``text`` is not what ``schema`` says; None if it is."""
    kind: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    exact: Any = json.loads(json.dumps(schema), parse_float=Decimal)  # or 0.07 would be no multiple of 0.01
    try:
        kind(exact, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text, parse_float=Decimal))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{str(error).splitlines()[0]} in {text:.200}"
    return None


def reason(message: str) -> str:
    """A refusal, without most of what is particular to its schema."""
    return message.removeprefix("schema ").removeprefix("cannot be enforced: ")[:70]


def report(tally: Tally, count: int, engine: Engine, seconds: float) -> None:
    refused = sum(tally.refused.values())
    print(f"{count} schemas: {refused} refused up front, {tally.finished + tally.cut} answered in {seconds:.0f} s")
    valid = tally.finished - len(tally.invalid)
    print(f"finished: {tally.finished}, of which valid: {valid}; cut at max_tokens: {tally.cut}")
    for line in (*tally.invalid, *tally.broken):
        print(f"  FAILED {line}")
    print("\nrefused because of")
    for why, times in tally.refused.most_common(12):
        print(f"{times:>6}  {why}")
    rows, steps = np.array(tally.masks) * 1e6, np.array(tally.steps)
    stats = engine.stats()
    each = 1e3 * stats.grammar_seconds / count
    print(f"\ngrammars: {stats.grammars_compiled} compiled, {each:.2f} ms each, beside the steps")
    print(f"mask of a row: median {np.median(rows):,.0f} us, p99 {np.percentile(rows, 99):,.0f} us")
    masks = steps[:, 0] * 1e3
    print(f"masks of a step: median {np.median(masks):.2f} ms, p99 {np.percentile(masks, 99):.2f} ms")
    print(f"share of the steps' time: {steps[:, 0].sum() / steps[:, 1].sum():.1%}")


if __name__ == "__main__":
    sys.exit(main())
