"""What drafts by prompt lookup are worth: tokens a second with and without, on texts that repeat and texts that do not.

    python bench/speculation.py smollm2
    python bench/speculation.py smollm2 --drafts 4 8 16 --sequences 1 4

"copy" asks the model to write a program out again that stands in the prompt, "prose" to go on with a text. Rounds of
all alternate; medians are reported, and the share of drafted tokens that were right. Ends with status 1 when an answer
differs from the one without drafts.
"""

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from trimaran.base.messages import Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.text.tokenizer import open_tokenizer

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument("--drafts", type=int, nargs="+", default=[4, 8], help="most tokens of a draft, each measured")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1], help="that run at once")
    parser.add_argument("--tokens", type=int, default=192, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    given = parser.parse_args()
    code = HERE.joinpath("texts", "code.txt").read_text("utf-8")
    prose = HERE.joinpath("calibration", "prose.txt").read_text("utf-8")
    prompts = {"copy": f"{code}\n\n# The same program once more:\n\n{code[:300]}", "prose": prose[:1200]}
    model = resolve(given.model).path
    with open_checkpoint(model) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
        checkpoint.release()
    common = EngineConfig(model=str(model), threads=given.threads, prefix_caching=False, kv_memory_bytes=1 << 28)
    engines = {most: load_engine(replace(common, speculative_ngram=most)) for most in (0, *given.drafts)}
    same = True
    print(f"{'text':<8}{'sequences':>10}{'draft':>7}{'tokens/s':>10}{'times':>8}{'right':>8}")
    for name, prompt in prompts.items():
        ids = tokenizer.encode_prompt(prompt)
        for sequences in given.sequences:
            seconds: dict[int, list[float]] = {most: [] for most in engines}
            answers: dict[int, list[int]] = {}
            for engine in engines.values():
                engine.forget_counts()
            for _ in range(given.rounds):
                for most, engine in engines.items():
                    took, answers[most] = decode(engine, ids, sequences, given.tokens)
                    seconds[most].append(took)
            plain = statistics.median(seconds[0])
            for most, engine in engines.items():
                took, counts = statistics.median(seconds[most]), engine.stats()
                rate = (given.tokens - 1) * sequences / took
                share = f"{counts.accepted_tokens / counts.drafted_tokens:.0%}" if counts.drafted_tokens else ""
                print(f"{name:<8}{sequences:>10}{most:>7}{rate:>10,.0f}{plain / took:>8.2f}{share:>8}")
                same = same and answers[most] == answers[0]
    for engine in engines.values():
        engine.close()
    print("answers: " + ("the same with drafts or without" if same else "DIFFERENT"))
    return 0 if same else 1


def decode(engine: Engine, prompt: list[int], sequences: int, tokens: int) -> tuple[float, list[int]]:
    """Seconds from when all have their first token to the last one of all, and the tokens of all."""
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    answers: dict[str, list[int]] = {str(number): [] for number in range(sequences)}
    for name in answers:
        engine.submit(Submit(name, prompt, sampling))
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
