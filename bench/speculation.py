"""What drafts are worth: tokens a second with and without, on texts that repeat, texts that do not, and JSON.

    python bench/speculation.py smollm2
    python bench/speculation.py smollm2 --drafts 4 8 16 --sequences 1 4 16 --cases prose-sampled json

"copy" asks the model to write a program out again that stands in the prompt, "prose" to go on with a text, "json" for
a list of objects by a schema, as it wants or written over from the prompt ("json-copy"). "-sampled" is at temperature
1, each sequence with a seed of its own. Rounds of all alternate; medians are reported, and the share of drafted tokens
that were right. Ends with status 1 when an answer differs from the one without drafts.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from trimaran.base.grammar import Grammar
from trimaran.base.messages import Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.text.tokenizer import open_tokenizer

HERE = Path(__file__).resolve().parent
PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 30}, "city": {"type": "string", "maxLength": 20}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
        "member": {"type": "boolean"},
    },
    "required": ["first_name", "age", "address", "member"],
    "additionalProperties": False,
}
PEOPLE = Grammar("json_schema", json.dumps({"type": "array", "items": PERSON, "minItems": 50}), "response_format")
LIST = [
    {"first_name": name, "age": age, "address": {"street": f"{age} {street}", "city": city}, "member": age > 40}
    for name, age, street, city in (
        ("Ada", 36, "Analytical Row", "London"),
        ("Blaise", 39, "Rue du Puy", "Paris"),
        ("Charles", 79, "Dorset Street", "London"),
        ("Grace", 85, "Harbour Road", "New York"),
        ("Konrad", 85, "Methfesselstrasse", "Berlin"),
        ("Alan", 41, "Adlington Road", "Wilmslow"),
    )
]


@dataclass(frozen=True)
class Case:
    """What is asked for, and how."""

    prompt: str
    temperature: float
    grammar: Grammar | None = None

    def sampling(self, seed: int, tokens: int) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            seed=seed,
            max_tokens=tokens,
            grammar=self.grammar,
            ignore_eos=self.grammar is None,
        )


def cases() -> dict[str, Case]:
    code = HERE.joinpath("texts", "code.txt").read_text("utf-8")
    prose = HERE.joinpath("calibration", "prose.txt").read_text("utf-8")
    copy = f"{code}\n\n# The same program once more:\n\n{code[:300]}"
    people = "A JSON array of people, each with first_name, age, address and member:\n"
    listed = json.dumps(LIST, separators=(",", ":"))
    again = f"{listed}\n\nThe same list once more:\n"
    return {
        "copy": Case(copy, 0.0),
        "copy-sampled": Case(copy, 1.0),
        "prose": Case(prose[:1200], 0.0),
        "prose-sampled": Case(prose[:1200], 1.0),
        "json": Case(people, 0.0, PEOPLE),
        "json-sampled": Case(people, 1.0, PEOPLE),
        "json-copy": Case(again, 0.0, PEOPLE),
        "json-copy-sampled": Case(again, 1.0, PEOPLE),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument("--cases", nargs="+", choices=list(cases()), default=list(cases()))
    parser.add_argument("--drafts", type=int, nargs="+", default=[4, 8], help="most tokens of a draft, each measured")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1], help="that run at once")
    parser.add_argument("--tokens", type=int, default=192, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    given = parser.parse_args()
    model = resolve(given.model).path
    with open_checkpoint(model) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
        checkpoint.release()
    common = EngineConfig(model=str(model), threads=given.threads, prefix_caching=False, kv_memory_bytes=1 << 28)
    engines = {most: load_engine(replace(common, speculative_ngram=most)) for most in (0, *given.drafts)}
    same = True
    print(f"{'text':<18}{'sequences':>10}{'draft':>7}{'tokens/s':>10}{'times':>8}{'right':>8}")
    for name in given.cases:
        case = cases()[name]
        ids = tokenizer.encode_prompt(case.prompt)
        for sequences in given.sequences:
            seconds: dict[int, list[float]] = {most: [] for most in engines}
            answers: dict[int, list[int]] = {}
            for engine in engines.values():
                decode(engine, ids, case, sequences, 2)  # compiles the grammar, warms up
                engine.forget_counts()
            for _ in range(given.rounds):
                for most, engine in engines.items():
                    took, answers[most] = decode(engine, ids, case, sequences, given.tokens)
                    seconds[most].append(took)
            plain = statistics.median(seconds[0])
            for most, engine in engines.items():
                took, counts = statistics.median(seconds[most]), engine.stats()
                rate = (len(answers[most]) - sequences) / took
                share = f"{counts.accepted_tokens / counts.drafted_tokens:.0%}" if counts.drafted_tokens else ""
                print(f"{name:<18}{sequences:>10}{most:>7}{rate:>10,.0f}{plain / took:>8.2f}{share:>8}", flush=True)
                same = same and answers[most] == answers[0]
    for engine in engines.values():
        engine.close()
    print("answers: " + ("the same with drafts or without" if same else "DIFFERENT"))
    return 0 if same else 1


def decode(engine: Engine, prompt: list[int], case: Case, sequences: int, tokens: int) -> tuple[float, list[int]]:
    """Seconds from when all have their first token to the last one of all, and the tokens of all."""
    answers: dict[str, list[int]] = {str(number): [] for number in range(sequences)}
    for seed, name in enumerate(answers):
        engine.submit(Submit(name, prompt, case.sampling(seed, tokens)))
    began = None
    while not engine.idle:
        for message in engine.step():
            assert isinstance(message, Tokens), message
            answers[message.id] += [token.id for token in message.tokens]
        if began is None and all(answers.values()):
            began = time.perf_counter()
    assert began is not None
    return time.perf_counter() - began, [token for answer in answers.values() for token in answer]


if __name__ == "__main__":
    sys.exit(main())
