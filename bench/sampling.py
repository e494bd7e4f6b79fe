"""What each sampling option costs a step.

    python bench/sampling.py smollm2
    python bench/sampling.py smollm2 --sequences 64

Decodes the same prompts with one set of options after the other, greedy first, several times over. All of it is in the
step: logits that greedy does not write out, the choice of the tokens, and what Python does with them.
"""

import argparse
import statistics
import time

import numpy as np

from trimaran.base.messages import Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint.sources import resolve
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine

OPTIONS = {
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
    "temperature 0.7": SamplingParams(temperature=0.7, ignore_eos=True),
    "temperature 0.7, top_p 0.9": SamplingParams(temperature=0.7, top_p=0.9, ignore_eos=True),
    "temperature 0.7, top_k 40": SamplingParams(temperature=0.7, top_k=40, ignore_eos=True),
    "temperature 0.7, min_p 0.05": SamplingParams(temperature=0.7, min_p=0.05, ignore_eos=True),
    "... top_p 0.9, penalties": SamplingParams(
        temperature=0.7, top_p=0.9, repetition_penalty=1.1, frequency_penalty=0.5, ignore_eos=True
    ),
    "... top_p 0.9, 5 logprobs": SamplingParams(temperature=0.7, top_p=0.9, logprobs=5, ignore_eos=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument("--sequences", type=int, default=32, help="decoded at once")
    parser.add_argument("--depth", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=32, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="repeats of everything; medians are reported")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    given = parser.parse_args()
    model = str(resolve(given.model).path)
    longest = given.depth + given.steps + 2
    engine = load_engine(
        EngineConfig(model=model, threads=given.threads, max_num_seqs=given.sequences, max_model_len=longest, seed=0)
    )
    tokens = np.random.default_rng(0).integers(3, engine.info.vocab, (given.sequences, given.depth)).tolist()
    seconds: dict[str, list[float]] = {name: [] for name in OPTIONS}
    for _ in range(given.rounds):
        for name, options in OPTIONS.items():
            seconds[name].append(decode(engine, tokens, options, given.steps))
    engine.close()
    greedy = statistics.median(seconds["greedy"])
    print(f"{given.sequences} sequences at depth {given.depth}, {engine.info.threads} threads, {engine.info.isa}\n")
    print(f"{'options':<28}{'ms a step':>12}{'us a row':>12}{'of greedy':>12}")
    for name, times in seconds.items():
        step = statistics.median(times)
        more = (step - greedy) / given.sequences
        print(f"{name:<28}{step * 1e3:>12.2f}{more * 1e6:>12.1f}{greedy / step:>12.0%}")


def decode(engine: Engine, prompts: list[list[int]], sampling: SamplingParams, steps: int) -> float:
    """Seconds of a step in which every sequence decodes; prompts come from the prefix cache but for the first time."""
    waiting = {str(i) for i in range(len(prompts))}
    for name, prompt in zip(sorted(waiting), prompts, strict=True):
        engine.submit(Submit(name, prompt, sampling))
    while waiting:
        waiting.difference_update(m.id for m in engine.step() if isinstance(m, Tokens) and m.tokens)
    began = time.perf_counter()
    for _ in range(steps):
        engine.step()
    seconds = time.perf_counter() - began
    engine.cancel_all()
    engine.step()
    return seconds / steps


if __name__ == "__main__":
    main()
